"""The rooms of the package: which may import which (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import metavrf

PACKAGE = Path(metavrf.__file__).parent
# From the inside out: a room imports from rooms before it, and from itself; rooms of one line do not import each other.
ORDER: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "randomness",
        "registry",
        "settings",
        "files",
        "manifest",
        "schema",
        "episodes",
        "joined",
        "spec",
        "protocol",
        "prediction",
        "memory",
        "thinning",
    ),
    ("kernels", "nn", "tasks"),
    ("learners",),
    ("config", "formats"),
    ("runs",),
    ("model", "pictures", "tables", "networks", "features"),
    ("testing",),
    ("estimators", "release", "studies", "reports", "plots"),
    ("commands", "serve", "cli"),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
TOGETHER = (0, 3, 5, 7, 8)  # lines whose rooms may import each other: they are one room in several files
FILES = sorted(
    file for file in PACKAGE.rglob("*.py") if file.stem not in ("__init__", "__main__") or file.parent != PACKAGE
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_before_it(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "models":
        return
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if names == ["metavrf"]:
            names = [f"metavrf.{alias.name}" for alias in getattr(node, "names", [])]
        assert not (own == "learners" and any(name.startswith("metavrf.tasks") for name in names)), file.name
        for name in names:
            if name.startswith("metavrf."):
                other = name.split(".")[1]
                before = LEVEL[other] < LEVEL[own] or (LEVEL[other] == LEVEL[own] and LEVEL[own] in TOGETHER)
                assert other == own or before, f"{file.name} imports {name}"


def prints(file: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id == "print" for called in calls)


def test_only_commands_and_the_page_print() -> None:
    speaking = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in FILES if prints(file)}
    assert speaking <= {"commands", "serve", "cli", "reports", "runs"}
    assert [file.name for file in (PACKAGE / "runs").glob("*.py") if prints(file)] == ["progress.py"]
