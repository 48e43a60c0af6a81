from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import metavrf
from metavrf.cli import main
from metavrf.runs import training
from metavrf.runs.directory import Run
from metavrf.tasks.datasets import DATASETS
from metavrf.tasks.functions import FAMILIES
from metavrf.testing import compare, evaluate
from processes import TINY, TINY_OPTIONS, DiskOf, run, run_real, snapshot, without
from shell import printed_json, refused

COMMANDS = ("train", "evaluate", "compare", "info", "fit", "predict", "export", "demo", "reproduce", "study")
PNG = b"\x89PNG\r\n\x1a\n"
SAWTOOTH = """
from metavrf import FunctionFamily, register_family

@register_family("sawtooth")
class Sawtooth(FunctionFamily):
    parameters = {"height": (0.5, 3.0), "period": (2.0, 4.0), "phase": (0.0, 1.0)}

    def evaluate(self, x, height, period, phase):
        return height * ((x / period + phase) % 1.0)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs, not to be changed: none, lstm, three (shots), maml (another task)."""
    path = tmp_path_factory.mktemp("runs")
    options = TINY_OPTIONS | {"iterations": 4}
    metavrf.train("sine", out=path / "none", quiet=True, **options | {"context": "none"})
    metavrf.train("sine", out=path / "lstm", quiet=True, **options | {"context": "lstm"})
    metavrf.train("sine", out=path / "three", quiet=True, shot=3, **options)
    metavrf.train("sine-maml", out=path / "maml", quiet=True, **options)
    return path


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    printed = capsys.readouterr()
    assert stop.value.code == 0
    assert printed.out.startswith(f"usage: metavrf {command}")
    assert printed.err == ""


def test_help_names_every_command_and_imports_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "metavrf", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)
    imported = [line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "metavrf.cli" in imported
    assert [
        name for name in imported if name.split(".")[0] in {"torch", "numpy", "scipy", "sklearn", "matplotlib"}
    ] == []


def test_import_metavrf_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, metavrf; dir(metavrf); print(sorted({'torch', 'numpy', 'tyro'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(metavrf, name).__doc__ for name in metavrf.__all__)
    with pytest.raises(AttributeError, match="module 'metavrf' has no attribute 'trian'"):
        metavrf.trian  # noqa: B018


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    main(["--version"])
    assert capsys.readouterr().out == f"metavrf {version('metavrf')}\n"


def test_the_module_runs_as_the_command_does(runs: Path) -> None:
    done = run_real("info", str(runs / "none"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["step"] == 4
    failed = run_real("info", str(runs / "nowhere"))
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("metavrf: ")
    assert failed.stderr.count("\n") == 1


# Evaluate


def test_evaluate_prints_one_json_object_that_is_the_same_twice(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (printed_json(capsys, "evaluate", runs / "lstm", "--tasks", 20, "--json") for _ in range(2))
    figures = {"metric", "mean", "ci95", "tasks", "shot", "nll", "coverage90", "protocol", "seconds"}
    assert first.keys() == figures | {"seed", "data_sha256"}
    assert without(first, "seconds") == without(second, "seconds")
    assert (first["metric"], first["tasks"], first["shot"], first["protocol"]) == ("mse", 20, 5, "inductive")
    assert first["mean"] == metavrf.evaluate(runs / "lstm", tasks=20).mean


def test_evaluate_prints_a_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(runs / "lstm"), "--tasks", "10"])
    printed = capsys.readouterr().out
    mean = metavrf.evaluate(runs / "lstm", tasks=10).mean
    assert f"{mean:.4g}" in printed
    assert "inductive" in printed


def test_evaluate_at_another_shot_seed_and_number_of_bases(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = printed_json(capsys, "evaluate", runs / "none", "--tasks", 10, "--json")
    more = printed_json(capsys, "evaluate", runs / "none", "--tasks", 10, "--json", "--shot", 10)
    other = printed_json(capsys, "evaluate", runs / "none", "--tasks", 10, "--json", "--seed", 1)
    wide = printed_json(
        capsys, "evaluate", runs / "none", "--tasks", 10, "--json", "--bases", 64, "--samples", 2, "--draw", 3
    )
    assert (usual["shot"], more["shot"]) == (5, 10)
    assert len({result["data_sha256"] for result in (usual, more, other)}) == 3
    assert wide["data_sha256"] == usual["data_sha256"]
    assert wide["mean"] != usual["mean"]


def test_saved_figures_carry_their_provenance(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["evaluate", str(runs / "none"), "--tasks", "10", "--seed", "7", "--save", str(file)]
    assert run(arguments, tmp_path / "log").code == 0
    saved = json.loads(file.read_text())
    provenance = saved["provenance"]
    assert provenance["command"] == " ".join(["metavrf", *arguments])
    assert provenance["seed"] == saved["seed"] == 7
    assert provenance["torch"] == torch.__version__
    assert {"commit", "metavrf", "python", "finished"} < provenance.keys()
    assert saved["data_sha256"] == metavrf.evaluate(runs / "none", tasks=10, seed=7).data_sha256
    assert saved["mean"] == metavrf.evaluate(runs / "none", tasks=10, seed=7).mean


def test_the_provenance_of_the_module_names_the_command(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert run_real("evaluate", str(runs / "none"), "--tasks", "2", "--save", str(file)).returncode == 0
    assert json.loads(file.read_text())["provenance"]["command"].startswith("metavrf evaluate ")


def test_a_plot_is_drawn_as_png(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "fits.png"
    printed_json(capsys, "evaluate", runs / "none", "--tasks", 2, "--plot", file, "--json")
    assert file.read_bytes().startswith(PNG)
    assert list(snapshot(tmp_path)) == ["new/fits.png"]


def test_a_plot_of_another_kind_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fits.gif"
    sentence = refused(capsys, "evaluate", runs / "none", "--tasks", 2, "--plot", file)
    assert sentence == f"cannot draw {file}: its name must end in one of .pdf, .png, .svg"
    assert snapshot(tmp_path) == {}


def test_a_plot_of_another_kind_is_refused_before_the_work_is_done(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *arguments, **options: calls.append(arguments))
    assert "fits.gif" in refused(capsys, "evaluate", runs / "none", "--plot", tmp_path / "fits.gif")
    assert calls == []


def test_a_full_disk_keeps_the_old_plot_and_table(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("fits.png", "table.json"):
        (tmp_path / "kept" / name).write_text("old")
    before = snapshot(tmp_path / "kept")
    for option, name, size in (("--plot", "fits.png", 10_000), ("--save", "table.json", 500)):
        arguments = ["evaluate", str(runs / "none"), "--tasks", "2", "--json", option, str(tmp_path / "kept" / name)]
        done = run(arguments, tmp_path / "log", before=DiskOf(size))
        assert done.code == 2
        assert done.err.startswith(f"metavrf: cannot write {tmp_path}/kept/{name}: ")
        assert done.err.count("\n") == 1
        assert snapshot(tmp_path / "kept") == before


# Compare


def test_compare_shows_paired_differences_and_the_limits(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "compare", runs / "none", runs / "lstm", "--tasks", 20, "--json")["rows"]
    names = [str(runs / "none"), str(runs / "lstm"), "best affine predictor", "Bayes-optimal"]
    assert [row["name"] for row in found] == names
    assert found[0]["difference"] == {"mean": 0.0, "ci95": 0.0, "p_value": None}
    for row in found[1:]:
        assert row["difference"]["mean"] == pytest.approx(row["mean"] - found[0]["mean"], abs=1e-6)
    one, other = (metavrf.evaluate(runs / name, tasks=20).per_task.double() for name in ("none", "lstm"))
    assert found[1]["difference"]["mean"] == (other - one).mean().item()
    assert found[3]["mean"] < found[2]["mean"] < min(found[0]["mean"], found[1]["mean"])
    assert len({row["data_sha256"] for row in found}) == 1


def test_compare_without_the_limits(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "compare", runs / "none", runs / "lstm", "--tasks", 4, "--no-floor", "--json")
    assert [row["name"] for row in found["rows"]] == [str(runs / "none"), str(runs / "lstm")]


def test_compare_prints_a_row_for_each_run_draws_and_saves(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"--plot": tmp_path / "fits.png", "--save": tmp_path / "table.json"}
    arguments = ["compare", str(runs / "none"), str(runs / "lstm"), "--tasks", "4", "--no-floor"]
    main([*arguments, *(str(part) for item in files.items() for part in item)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "4 test tasks, 5 shots, inductive"
    assert sum("±" in line for line in lines) == 2
    assert files["--plot"].read_bytes().startswith(PNG)
    saved = json.loads(files["--save"].read_text())
    assert len(saved["rows"]) == 2
    assert saved["provenance"]["seed"] == 2020


def test_compare_of_different_tasks_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, "compare", runs / "none", runs / "maml")
    assert sentence == "runs on different tasks cannot be compared: sine, sine-maml"


def test_compare_of_different_shots_needs_one_to_compare_at(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, "compare", runs / "none", runs / "three")
    assert sentence == "these runs differ in --shot: say at which shot to compare them"
    found = printed_json(
        capsys, "compare", runs / "none", runs / "three", "--shot", 4, "--tasks", 4, "--no-floor", "--json"
    )
    assert [row["shot"] for row in found["rows"]] == [4, 4]


def test_compare_of_nothing_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare"])
    assert stop.value.code == 2
    assert "different tasks" not in capsys.readouterr().err


# Info


def test_info_says_what_a_run_is(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed_json(capsys, "info", runs / "lstm", "--json")
    assert (found["finished"], found["step"], found["iterations"]) == (True, 4, 4)
    assert found["config"]["model"]["context"] == "lstm"
    assert found["last_validation"] == Run(runs / "lstm").metrics()[-1]
    assert found["result"]["stopped_early"] is False
    main(["info", str(runs / "lstm")])
    printed = capsys.readouterr().out
    assert printed.startswith(f"# {runs}/lstm: step 4 of 4\n")
    assert 'context = "lstm"' in printed


def test_info_of_an_unfinished_run_says_how_to_go_on(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    shutil.copy(runs / "none" / "config.toml", out)
    main(["info", str(out)])
    assert f"# not finished; continue with: metavrf train --resume --out {out}\n" in capsys.readouterr().out
    assert printed_json(capsys, "info", out, "--json")["step"] == 0


@pytest.mark.parametrize(("file", "garbage"), [("result.json", b"{"), ("metrics.jsonl", b"\xff\xfe\n")])
def test_info_of_a_damaged_run_is_one_sentence(
    file: str, garbage: bytes, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(runs / "none", tmp_path / "run"))
    (out / file).write_bytes(garbage)
    assert file in refused(capsys, "info", out)


# Refusals


@pytest.mark.parametrize("command", ["evaluate", "compare", "info"])
def test_a_missing_run_is_one_sentence(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, command, tmp_path / "none")
    assert sentence == f"{tmp_path}/none is not a run: it has no config.toml; give the --out of a 'metavrf train'"
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--shot", "0"], "shot = 0 must be at least 1"),
        (["--lr", "-1"], "lr = -1.0 must be positive"),
        (["--lr", "nan"], "lr = nan must be finite"),
        (["--bases", "31"], "bases = 31 must be even for the sincos feature map"),
        (["--devices", "26"], "devices = 26 exceeds the 25 tasks of a batch"),
        (["--validate-tasks", "1"], "validate_tasks = 1 must be at least 2"),
    ],
)
def test_settings_that_cannot_work_are_one_sentence(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "train", "sine", "--out", tmp_path / "run", *options) == sentence
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize(
    "arguments", [["train", "sine", *TINY, "--seed"], ["evaluate", "RUN", "--tasks", "4", "--seed"]]
)
def test_a_negative_seed_is_one_sentence(
    arguments: list[str], runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", tmp_path / "run"] if arguments[0] == "train" else []
    given = [runs / "none" if argument == "RUN" else argument for argument in arguments]
    assert "seed" in refused(capsys, *given, -1, *out)
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize(
    "options",
    [
        ["--bases", "31"],
        ["--bases", "0"],
        ["--bases", "-2"],
        ["--samples", "0"],
        ["--samples", "-1"],
        ["--draw", "-1"],
        ["--shot", "0"],
        ["--tasks", "1"],
        ["--tasks", "-5"],
    ],
)
def test_numbers_that_cannot_be_evaluated_are_one_sentence(
    options: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert options[0].lstrip("-") in refused(capsys, "evaluate", runs / "none", "--tasks", 4, *options)


@pytest.mark.parametrize(
    "options",
    [
        ["--preset", "best"],
        ["--context", "gru"],
        ["--shot", "x"],
        ["--shot", "1.5"],
        ["--lr", "fast"],
        ["--colour", "red"],
    ],
)
def test_values_that_cannot_be_read_are_refused_by_name(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "sine", "--out", str(tmp_path / "run"), *options])
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert options[0] in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert snapshot(tmp_path) == {}


def test_values_that_cannot_be_read_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'gru'" in refused(capsys, "train", "sine", "--out", tmp_path / "run", "--context", "gru")


def test_an_unknown_task_is_one_sentence_that_names_the_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refused(capsys, "train", "sinus", "--out", tmp_path / "run")
    assert sentence.startswith("there is no task 'sinus' (did you mean sine?): choose from ")
    assert all(f" {name}, " in sentence for name in (*FAMILIES, "omniglot", "mini-imagenet"))
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize("place", ["file/sub", "/proc/metavrf-test", "a" * 300])
def test_an_out_that_cannot_be_made_is_one_sentence(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    assert str(tmp_path / place) in refused(capsys, "train", "sine", "--out", tmp_path / place)
    assert snapshot(tmp_path) == {"file": b"kept"}


def test_a_table_that_cannot_be_saved_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    done = run(
        ["evaluate", str(runs / "none"), "--tasks", "2", "--save", str(tmp_path / "none/table.json")], tmp_path / "log"
    )
    assert done.code == 2
    assert done.err.startswith(f"metavrf: cannot write {tmp_path}/none/table.json: No such file or directory")
    assert done.err.count("\n") == 1


def test_a_run_is_not_overwritten(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(runs)
    assert "holds a run already" in refused(capsys, "train", "sine", "--out", runs / "none")
    assert snapshot(runs) == before


@pytest.mark.parametrize("change", [["--lr", "0.1"], ["--context", "bilstm"], ["--iterations", "5"]])
def test_a_resumed_run_keeps_its_settings(change: list[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(runs)
    sentence = refused(capsys, "train", "--resume", "--out", runs / "none", *change)
    assert sentence == "a resumed run keeps its settings: give --resume and --out alone, or start a new run"
    assert snapshot(runs) == before


def test_resuming_nothing_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a run" in refused(capsys, "train", "--resume", "--out", tmp_path / "none")
    assert snapshot(tmp_path) == {}


# Plugins


def test_a_plugin_adds_a_task_that_trains_and_evaluates(tmp_path: Path) -> None:
    plugin, out = tmp_path / "sawtooth.py", tmp_path / "run"
    plugin.write_text(SAWTOOTH)
    trained = run(["train", "sawtooth", "--plugin", str(plugin), "--out", str(out), *TINY, "--quiet"], tmp_path / "log")
    assert (trained.code, trained.err) == (0, "")
    assert json.loads((out / "result.json").read_text())["task"] == "sawtooth"
    evaluate = ["evaluate", str(out), "--tasks", "4", "--json"]
    done = run([*evaluate, "--plugin", str(plugin)], tmp_path / "log")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["mean"] > 0
    compared = run(["compare", str(out), "--tasks", "4", "--plugin", str(plugin), "--json"], tmp_path / "log")
    assert len(json.loads(compared.out)["rows"]) == 1  # no limit is known
    without_it = run(evaluate, tmp_path / "log")
    assert without_it.code == 2
    known = ", ".join([*FAMILIES, *DATASETS])
    assert without_it.err == (
        f"metavrf: there is no task 'sawtooth': choose from {known}, or give a path, "
        "or name the file that adds it with --plugin\n"
    )


def test_a_missing_plugin_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none.py"
    sentence = refused(capsys, "train", "sine", "--plugin", file, "--out", tmp_path / "run")
    assert sentence == f"the plugin {file} does not exist"
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize("code", ["raise RuntimeError('boom')", "def broken(:", "import no_such_module", "\0"])
def test_a_plugin_that_fails_is_one_sentence(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(code)
    assert str(file) in refused(capsys, "train", "sine", "--plugin", file, "--out", tmp_path / "run")
    assert [name for name in snapshot(tmp_path) if "__pycache__" not in name] == ["plugin.py"]


# Demo


def test_the_demo_prints_a_table_draws_a_picture_and_reuses_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compare.compare
    monkeypatch.setattr(compare, "compare", lambda models, tasks, shot: real(models, tasks=20, shot=shot))
    monkeypatch.setattr(compare, "milliseconds_to_adapt", lambda *_: 1.0)  # it differs from time to time
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "TASKS_FOR_KERNELS", 10)
    monkeypatch.setattr(training, "TASKS_FOR_BAND", 5)
    command = ["demo", "--iterations", "2", "--out", "demo"]
    main(command)
    first = capsys.readouterr()
    names = ("many-kernels", "one-shared-kernel", "plain-rff")
    rows = (*(f"demo/{name}" for name in names), "best affine predictor", "Bayes-optimal")
    assert all(row in first.out for row in rows)
    assert first.out.endswith("picture: demo/fits.png\npicture: demo/kernels.png\n")
    for picture in ("fits", "kernels"):
        assert Path(f"demo/{picture}.png").read_bytes().startswith(PNG)
    assert first.err.count("step 2/2") == 3

    models = {name: Path("demo", name, "model.safetensors").read_bytes() for name in names}
    main(command)
    second = capsys.readouterr()
    assert second.out == first.out
    assert "step" not in second.err
    assert {name: Path("demo", name, "model.safetensors").read_bytes() for name in models} == models

    sentence = refused(capsys, *command, "--shot", 3)
    assert sentence.startswith("demo/many-kernels holds a demo with other settings: choose another --out")


def test_the_demo_refuses_settings_that_cannot_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "demo", "--shot", 0, "--out", tmp_path / "demo") == "shot = 0 must be at least 1"
    assert snapshot(tmp_path) == {}


# Tables and mistyped commands


def test_a_mistyped_command_is_answered_with_the_likeliest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(did you mean evaluate?)" in refused(capsys, "evalute", "sine")
    assert refused(capsys).startswith("give a command: train, pretrain, sweep, evaluate, ")


@pytest.mark.parametrize("given", [["omniglot"], ["--task", "omniglot"], ["--task=omniglot"]])
def test_the_defaults_are_those_of_the_task_however_it_is_named(given: list[str]) -> None:
    from metavrf.cli import parse

    config = parse(["train", *given, "--out", "run"]).config
    assert (config.episode.shot, config.data.mirror, config.task) == (1, True, "omniglot")


@pytest.mark.parametrize("width", ["80", "60"])
def test_a_table_fits_the_screen_by_dropping_columns_and_names_them(
    width: str, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    main(["compare", "none", "lstm", "--tasks", "4"])
    whole = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("COLUMNS", width)
    main(["compare", "none", "lstm", "--tasks", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("left out for want of width: ")
    assert all(len(line) <= int(width) for line in lines[1:-1])
    figure = whole[3].split(" ± ")[0].split()[-1]
    assert any(figure in line for line in lines)  # to the digit


def test_completion_is_printed_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", "bash"])
    assert stop.value.code in (0, None)
    assert "evaluate" in capsys.readouterr().out
