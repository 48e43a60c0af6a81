"""The reference that 'make docs' makes from docstrings."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import metavrf


@pytest.mark.parametrize("name", metavrf.__all__)
def test_every_public_name_says_what_it_is_and_so_do_its_public_methods(name: str) -> None:
    thing = getattr(metavrf, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        own = {key: value for key, value in vars(thing).items() if not key.startswith("_") and callable(value)}
        assert [key for key, value in own.items() if not inspect.getdoc(value)] == []


def test_the_reference_has_a_section_for_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("pdoc", reason="pdoc is not installed")
    script = Path(__file__).parents[1] / "docs" / "reference.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "metavrf.html").read_text()
    assert [name for name in metavrf.__all__ if f'id="{name}"' not in page] == []
