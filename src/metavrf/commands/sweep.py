"""The command ``sweep``: the options of ``train``, and what to search."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from tyro.conf import OmitArgPrefixes

from metavrf.commands.plugins import Plugins, load_plugins
from metavrf.commands.train import starting_config
from metavrf.config import GROUPS, Config
from metavrf.errors import UserError
from metavrf.reports import number, print_table, show

Own = TypeVar("Own")


@dataclass
class Sweep(Plugins, Generic[Own]):
    """Search settings on validation tasks: metavrf sweep sine --over lr=1e-4..1e-2 --trials 20 --out FOLDER.

    The other options are those of 'metavrf train', and hold for every trial. Called again, it goes on.
    """

    config: OmitArgPrefixes[Config[Own]]
    over: tuple[str, ...]
    """Settings to search: NAME=LOW..HIGH, on a logarithmic scale where HIGH is 10 times LOW or more; or NAME=a,b,c."""
    out: Path
    """Folder of the search: its runs, its journal and its table."""
    trials: int = 20
    """Runs in all."""
    jobs: int = 1
    """Runs at a time, one thread each."""
    on: Literal["local", "ray", "slurm"] = "local"
    """Where they run, as for 'metavrf reproduce'."""

    def run(self) -> None:
        """Search, then print the trials, the best command and what mattered."""
        from metavrf.studies.sweep import sweep

        over: dict[str, str] = {}
        for text in self.over:
            name, equals, values = text.partition("=")
            name = name.replace("-", "_")
            if not equals or name in over:
                raise UserError(f"--over {text} is not understood: give each setting once, as in lr=1e-4..1e-2")
            over[name] = values
        prepare = partial(load_plugins, [file.absolute() for file in self.plugin]) if self.plugin else None
        found = sweep(
            self.config,
            over,
            out=self.out,
            trials=self.trials,
            jobs=self.jobs,
            on=self.on,
            say=lambda line: show(line, sys.stderr),
            prepare=prepare,
        )
        sign = -1 if found.figure == "val_accuracy" else 1
        ranked = sorted(found.trials, key=lambda t: (t.figure is None, 0.0 if t.figure is None else sign * t.figure))
        lines = [
            [
                str(trial.number),
                *(number(trial.settings.get(name, "")) for name in over),
                "failed" if trial.figure is None else number(trial.figure),
            ]
            for trial in ranked
        ]
        print_table(["trial", *over, found.figure], lines)
        if found.importances:
            shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.importances.items())
            judged = sum(trial.figure is not None for trial in found.trials)
            show(f"importance, by {judged} trials: {shares}")
        words = command_of(found.config)
        words += [word for file in self.plugin for word in ("--plugin", str(file))]
        show(f"best: {shlex.join([*words, '--out', 'RUN'])}")
        show(f"its run: {found.best.run}")


def command_of(config: Config[Any]) -> list[str]:
    """The words of a 'metavrf train' that has these settings."""
    words = [config.task, "--learner", config.learner, "--preset", config.preset]
    named = {"context": getattr(config.model, "context", ""), "group": config.data.group}  # others depend on them
    for name, value in named.items():
        words += [f"--{name}", value] if value else []
    start = starting_config(["--task", *words], config.learner)
    for group in GROUPS:
        for item in fields(getattr(config, group)):
            value = getattr(getattr(config, group), item.name)
            option = item.name.replace("_", "-")
            if value == getattr(getattr(start, group), item.name) or item.name in named:
                continue
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", *map(str, value if isinstance(value, tuple) else (value,))]
    return ["metavrf", "train", *words]
