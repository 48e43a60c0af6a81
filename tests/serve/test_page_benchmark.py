"""The benchmark of the page's answers runs, and keeps what it measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page.py"


def test_it_measures_strokes_drawings_and_curves_of_a_real_server(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--repeats", "40", "--save", str(tmp_path / "page.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "page.json").read_text())
    assert set(kept["milliseconds_quartiles"]) == {"a stroke moves", "a drawing is added", "a point of a curve moves"}
    for low, median, high in kept["milliseconds_quartiles"].values():
        assert 0 < low <= median <= high
    assert kept["provenance"]["command"].startswith("python page.py --repeats 40")
