"""The commands that say what there is: learners and data sets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import UseAppendAction

from metavrf.commands.runs import load_plugins


@dataclass
class Learners:
    """List the learners: what each is, where it was published, its tasks and protocol."""

    json: bool = False
    """Print one JSON object instead of text."""
    plugin: UseAppendAction[list[Path]] = field(default_factory=list)
    """Python file that registers learners of your own."""

    def run(self) -> None:
        """List them."""
        load_plugins(self.plugin)
        from metavrf.learners import learners, sentence

        known: list[dict[str, Any]] = [
            {
                "name": name,
                "what": sentence(cls),
                "citation": cls.citation,
                "tasks": list(cls.solves),
                "transductive": cls.transductive,
                "any_way": cls.any_way,
            }
            for name, cls in learners().items()
        ]
        if self.json:
            print(json.dumps({"learners": known}))
            return
        for entry in known:
            protocol = "transductive" if entry["transductive"] else "inductive"
            fixed = "" if entry["any_way"] else "; tested at the ways it was trained for"
            print(f"{entry['name']}: {entry['what']}\n  {' and '.join(entry['tasks'])}; {protocol}{fixed}")
            if entry["citation"]:
                print(f"  cite: {entry['citation']}")


@dataclass
class Data:
    """List the named data sets: what is there, what is missing, licence and citation."""

    data: str = ""
    """Folder of the data sets; else METAVRF_DATA, else the cache."""
    json: bool = False
    """Print one JSON object instead of a table."""
    fetch: tuple[str, ...] = ()
    """Download these data sets into the cache."""

    def run(self) -> None:
        """List, after fetching what was asked for."""
        from metavrf.tasks.datasets import NAMED_SETS, listing, named_set

        for name in self.fetch:
            named_set(name).find(self.data)
        sets = [listing(named, self.data) for named in NAMED_SETS.values()]
        if self.json:
            print(json.dumps({"sets": sets}))
            return
        for entry in sets:
            print(f"{entry['name']}: {entry['contents']}")
            for file, where in entry["files"].items():
                print(f"  {file}: {where or 'missing'}")
            if "classes" in entry:
                parts = (f"{part} {count} ({entry['images'][part]:,})" for part, count in entry["classes"].items())
                print(f"  classes (images): {', '.join(parts)}")
            print(f"  splits: {', '.join(entry['splits'])}\n  licence: {entry['licence']}\n  cite: {entry['citation']}")
