from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from metavrf.cli import main
from metavrf.serve import command
from metavrf.serve.command import Serve, listen
from processes import real_command, run_real
from servers import Server
from shell import SAWTOOTH


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of a command that a user can mend."""
    with pytest.raises(SystemExit) as stop:
        main(["serve", "--no-open", *(str(argument) for argument in arguments)])
    printed = capsys.readouterr().err
    assert stop.value.code == 2
    assert printed.count("\n") == 1
    return printed


def test_it_says_where_the_page_is_answers_there_and_ends_on_interrupt() -> None:
    process = subprocess.Popen(
        real_command("serve", "--port", "0", "--no-open"), stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"metavrf: the page is at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", line)
        assert found, line
        server = Server(int(found[1]))
        assert "<title>metavrf" in server.get("/").body
        assert server.get("/api/models").body["drawing"]["name"] == "omniglot"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)  # 0 where the tests were started with interrupts ignored
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()


def test_a_taken_port_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1" in refused(capsys, "--port", port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_gets_a_sentence(capsys: pytest.CaptureFixture[str], port: int) -> None:
    assert "0 to 65535" in refused(capsys, "--port", port)


def test_an_address_of_another_machine_gets_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "192.0.2.1" in refused(capsys, "--host", "192.0.2.1", "--port", 0)


def test_answers_are_not_delayed_by_nagle() -> None:
    import socket

    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # what asyncio looks at


def test_without_the_extra_a_sentence_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'metavrf[serve]'" in refused(capsys)


def test_the_model_of_curves_and_those_beside_it_are_taken(curve_runs: tuple[Path, Path]) -> None:
    curve, beside = map(str, curve_runs)
    served = Serve(curve_model=curve, curve_beside=[beside]).served()
    assert served.curves is not None
    assert [model.name for model in served.curves.models] == ["small-sine", "small-rff"]
    alone = Serve(curve_model=curve).served()
    assert alone.curves is not None
    assert len(alone.curves.models) == 1


def test_maml_is_shown_beside_the_curve(curve_runs: tuple[Path, Path], tmp_path: Path) -> None:
    import metavrf
    from metavrf.serve.models import CurveTask

    tiny: dict[str, Any] = {"iterations": 2, "validate_every": 2, "validate_tasks": 4, "batch": 3}
    metavrf.train("sine", learner="maml", shot=4, out=tmp_path / "maml", quiet=True, **tiny)
    served = Serve(curve_model=str(curve_runs[0]), curve_beside=[str(tmp_path / "maml")]).served()
    assert served.curves is not None
    task = CurveTask([-3.0, -1.0, 0.5, 2.0], [1.0, -2.0, 0.5, 1.5])
    moved = CurveTask(task.x, [*task.y[:-1], -1.5])
    (_, maml), (_, changed) = (served.curves.predict(points, [-4.0, 0.0, 4.0]) for points in (task, moved))
    assert maml.name == "maml"
    assert maml.low is not None and maml.high is not None
    assert all(low < mean < high for low, mean, high in zip(maml.low, maml.mean, maml.high, strict=True))
    assert maml.mean != changed.mean


def test_a_run_on_a_family_of_ones_own_is_served_with_its_plugin(tmp_path: Path) -> None:
    from metavrf.tasks.functions import FAMILIES

    plugin = tmp_path / "sawtooth.py"
    plugin.write_text(SAWTOOTH + "    domain = (0.0, 3.0)\n")
    options = ["--iterations", "2", "--validate-every", "2", "--validate-tasks", "4", "--components", "4"]
    try:
        FAMILIES.remove("sawtooth")
        main(["train", "sawtooth", "--plugin", str(plugin), *options, "--guards", "1", "--out", str(tmp_path / "run")])
        FAMILIES.remove("sawtooth")
        served = Serve(plugin=[plugin], curve_model=str(tmp_path / "run")).served()
        assert served.curves is not None
        assert served.curves.domain == (0.0, 3.0)  # of the family
    finally:
        FAMILIES.remove("sawtooth")


def test_shipped_curve_models_are_found_by_name_and_may_be_missing(
    curve_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metavrf.runs import directory as runs
    from metavrf.serve import models

    folder = curve_runs[0].parent
    (folder / "omniglot").symlink_to(runs.SHIPPED / "omniglot")
    monkeypatch.setattr(runs, "SHIPPED", folder)
    monkeypatch.setattr(models, "SHIPPED", folder)
    monkeypatch.setattr(command, "CURVE", "small-sine")
    monkeypatch.setattr(command, "BESIDE", ("small-rff", "not-there"))
    served = Serve().served()
    assert served.curves is not None
    assert [model.name for model in served.curves.models] == ["small-sine", "small-rff"]
    monkeypatch.setattr(command, "CURVE", "not-there")
    assert Serve().served().curves is None


def test_runs_that_do_not_fit_get_a_sentence(
    capsys: pytest.CaptureFixture[str], curve_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not a run" in refused(capsys, "--port", 0, "--curve-model", "nowhere")
    assert "does not classify" in refused(capsys, "--port", 0, "--draw-model", curve_runs[0])
    assert "does not fit curves" in refused(capsys, "--port", 0, "--curve-model", "omniglot")
    monkeypatch.setattr(command, "CURVE", "not-there")
    assert "--curve-model too" in refused(capsys, "--port", 0, "--curve-beside", curve_runs[1])


@pytest.mark.parametrize("screen", ["", ":0"])
def test_the_browser_is_opened_only_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch, screen: str) -> None:
    import webbrowser

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    command.open_browser("http://127.0.0.1:1/")
    assert opened == (["http://127.0.0.1:1/"] if screen else [])


def test_help_needs_neither_the_extra_nor_torch() -> None:
    done = run_real("serve", "--help")
    assert done.returncode == 0
    assert "--curve-beside" in done.stdout
    code = "import sys, metavrf.cli; sys.exit(bool({'fastapi', 'uvicorn', 'torch', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
