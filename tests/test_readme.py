"""The documentation's code runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_readme_example_runs_and_prints_the_shapes_it_promises(tmp_path: Path) -> None:
    (code,) = code_blocks("README.md")
    done = run(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    error, shapes = done.stdout.splitlines()
    assert 0 < float(error) < 1.0  # predicting zero everywhere has an error of about 4
    assert shapes.count("torch.Size([1, 100, 1])") == 2


def test_the_sawtooth_of_the_guide_trains_and_evaluates(tmp_path: Path) -> None:
    (code,) = code_blocks("docs/extending.md")
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
