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
    assert float(accuracy) > 0.9
    (wine,) = re.findall(r"^accuracy: (\S+)", done.stdout, flags=re.MULTILINE)
    assert float(wine) > 0.9
    assert "seven" in done.stdout
    assert done.stdout.count("±") == 5


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
