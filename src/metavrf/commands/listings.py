"""The commands that say what there is: learners and data sets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from metavrf.commands.plugins import Plugins
from metavrf.reports import show


@dataclass
class Learners(Plugins):
    """List the learners: what each is, where it was published, its tasks and protocol."""

    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """List them."""
        self.load_plugins()
        from metavrf.learners import LEARNERS, sentence

        known: list[dict[str, Any]] = [
            {
                "name": name,
                "what": sentence(cls),
                "citation": cls.citation,
                "tasks": list(cls.solves),
                "transductive": cls.transductive,
                "any_way": cls.any_way,
            }
            for name, cls in ((name, LEARNERS[name]) for name in LEARNERS)
        ]
        if self.json:
            print(json.dumps({"learners": known}))
            return
        for entry in known:
            protocol = "transductive" if entry["transductive"] else "inductive"
            fixed = "" if entry["any_way"] else "; tested at the ways it was trained for"
            show(f"{entry['name']}: {entry['what']}\n  {' and '.join(entry['tasks'])}; {protocol}{fixed}")
            if entry["citation"]:
                show(f"  cite: {entry['citation']}")


@dataclass
class Data(Plugins):
    """List the named data sets: what is there, what is missing, licence and citation."""

    data: str = ""
    """Folder of the data sets; else METAVRF_DATA, else the cache."""
    json: bool = False
    """Print one JSON object instead of a table."""
    fetch: tuple[str, ...] = ()
    """Download these data sets into the cache."""

    def run(self) -> None:
        """List, after fetching what was asked for."""
        self.load_plugins()
        from metavrf.tasks.datasets import DATASETS, listing

        for name in self.fetch:
            DATASETS[name].find(self.data)
        sets = [listing(DATASETS[name], self.data) for name in DATASETS]
        if self.json:
            print(json.dumps({"sets": sets}))
            return
        for entry in sets:
            show(f"{entry['name']}: {entry['contents']}")
            for file, where in entry["files"].items():
                show(f"  {file}: {where or 'missing'}")
            if "classes" in entry:
                parts = (f"{part} {count} ({entry['images'][part]:,})" for part, count in entry["classes"].items())
                show(f"  classes (images): {', '.join(parts)}")
            show(f"  splits: {', '.join(entry['splits'])}\n  licence: {entry['licence']}\n  cite: {entry['citation']}")
