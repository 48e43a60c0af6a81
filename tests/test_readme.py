"""The documentation's code runs as it stands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from glyphs import encoded, glyph

if TYPE_CHECKING:
    from servers import Server

ROOT = Path(__file__).parent.parent


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_readme_example_runs_and_prints_the_shapes_it_promises(tmp_path: Path) -> None:
    done = run(["-c", "\n".join(code_blocks("README.md"))], tmp_path)
    assert done.returncode == 0, done.stderr
    classes, error, shapes = done.stdout.splitlines()
    assert classes.startswith("(2, 2)")
    assert 0 < float(error) < 1.0  # predicting zero everywhere has an error of about 4
    assert shapes.count("torch.Size([1, 100, 1])") == 2


def test_the_quickstart_runs_from_top_to_bottom_and_its_model_is_as_good_as_it_says(tmp_path: Path) -> None:
    done = run(["-W", "error", "-c", "\n".join(code_blocks("docs/quickstart.md"))], tmp_path)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"new pictures: (\S+)", done.stdout)
    assert float(accuracy) > 0.85  # chance is 0.25
    (wine,) = re.findall(r"^accuracy: (\S+)", done.stdout, flags=re.MULTILINE)
    assert float(wine) > 0.9
    assert "seven" in done.stdout
    assert done.stdout.count("±") == 5


def test_the_sawtooth_of_the_guide_trains_and_evaluates(tmp_path: Path) -> None:
    code = code_blocks("docs/extending.md")[0]
    (tmp_path / "sawtooth.py").write_text(code)
    tiny = ["--iterations", "20", "--validate-every", "20", "--validate-tasks", "10", "--bases", "64"]
    for arguments in (
        ["train", "sawtooth", "--plugin", "sawtooth.py", "--out", "run", *tiny],
        ["evaluate", "run", "--plugin", "sawtooth.py", "--tasks", "20"],
    ):
        done = run(["-m", "metavrf", *arguments], tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert "://" in target or ((ROOT / page).parent / target).exists(), target


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_requests_of_the_page_on_the_page_are_answered(server: Server, tmp_path: Path) -> None:
    for name, number, drawer in (("a1", 0, 0), ("a2", 0, 1), ("b1", 1, 0), ("new", 0, 2)):
        (tmp_path / f"{name}.png").write_bytes(encoded(glyph(number, drawer, 105)))
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/page.md").read_text(), flags=re.DOTALL)
    script = "\necho\n".join(blocks).replace("http://127.0.0.1:8000/", server.url)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    drawing, curve = (json.loads(line) for line in done.stdout.splitlines())
    assert drawing["answers"][0]["best"] == "A"
    assert set(drawing["answers"][0]["probabilities"]) == {"A", "B"}
    assert [len(fit["mean"]) for fit in curve["curves"]] == [3, 3]


def test_the_limits_on_the_page_are_those_of_the_server(server: Server) -> None:
    limits = server.get("/api/models").body["limits"]
    section = (ROOT / "docs/page.md").read_text().partition("## Limits")[2].partition("## Security")[0]
    assert f"{limits['classes']} classes, {limits['pictures']} pictures; {limits['points']} points" in section
    assert f"{limits['pictures']} pictures, {limits['queries']:,} points" in section
    assert f"| {limits['tasks']}, each for an hour" in section
    assert limits["seconds"] == 3600
    assert limits["bytes"] == 1_000_000
