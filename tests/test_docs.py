"""The documentation keeps its promises: tables are those of results/, links lead somewhere, names are in the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metavrf

ROOT = Path(__file__).parent.parent
SOURCE = Path(metavrf.__file__).parent
LONGEST_LINE, LONGEST_README = 120, 100
PAGES = sorted({"README.md", "CONTRIBUTING.md", *(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))})


def text(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> list[tuple[int, str]]:
    """Numbered lines that are neither code nor a table."""
    lines, fenced = [], False
    for number, line in enumerate(text(page).splitlines(), start=1):
        fenced ^= line.startswith("```")
        if not (fenced or line.startswith(("```", "    ", "|"))):
            lines.append((number, line))
    return lines


def anchors(page: str) -> set[str]:
    """The headings of a page as links name them."""
    headings = (line.lstrip("# ") for _, line in prose(page) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text(page), flags=re.DOTALL)


def test_every_table_is_as_its_results_and_cards_say() -> None:
    done = subprocess.run(
        [sys.executable, "docs/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_a_page_and_a_heading(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(str(file.resolve().relative_to(ROOT))), target


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_results_that_is_named_exists(page: str) -> None:
    for name in re.findall(r"`(results/[\w./-]+\.jsonl?)`", text(page)):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page: str) -> None:
    assert [(number, line) for number, line in prose(page) if len(line) > LONGEST_LINE] == []


def test_the_readme_is_short() -> None:
    assert len(text("README.md").splitlines()) <= LONGEST_README


@pytest.mark.parametrize("page", PAGES)
def test_code_that_a_page_refers_to_is_there(page: str) -> None:
    for file, name in re.findall(r"`((?:[\w]+/)*\w+\.py)(?:: ([\w.]+))?`", text(page)):
        if not name and not (SOURCE / file).exists():  # a file of the repository, or one that the page tells to write
            homes = (ROOT, (ROOT / page).parent)
            assert "/" not in file or any((home / file).exists() for home in homes), file
            continue
        node: ast.AST = ast.parse((SOURCE / file).read_text())
        for part in name.split(".") if name else []:
            inside = {child.name: child for child in ast.iter_child_nodes(node) if hasattr(child, "name")}
            assert part in inside, f"{file}: {name}"
            node = inside[part]


def test_the_code_on_extending_uses_public_names_and_runs(tmp_path: Path) -> None:
    blocks = code_blocks("docs/extending.md")
    imported = [name for block in blocks for name in re.findall(r"^(?:from|import) (metavrf\S*)", block, flags=re.M)]
    assert set(imported) == {"metavrf"}
    code = "\n".join([*blocks, "print(float(error))"])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1  # lines of such slopes and middles are 4.1 from zero


def test_the_family_of_the_readme_has_eleven_lines() -> None:
    assert "[Eleven lines](docs/examples/ringing.py)" in text("README.md")
    assert len([line for line in text("docs/examples/ringing.py").splitlines() if line.strip()]) == 11
