"""The command ``train``. Its options depend on the task and the learner, so they are found in two steps."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro
from tyro.conf import OmitArgPrefixes

from metavrf.cli import is_first_process
from metavrf.commands.plugins import Plugins, load_plugins
from metavrf.config import PRESETS, Config
from metavrf.errors import UserError
from metavrf.learners import LEARNERS
from metavrf.reports import show
from metavrf.runs.directory import Run
from metavrf.runs.training import train

Own = TypeVar("Own")
DEFAULT_TASK = "sine"


@dataclass
class Train(Plugins, Generic[Own]):
    """Train a learner on tasks: metavrf train omniglot --way 5 --shot 1 --context bilstm --out RUN.

    The options and their defaults are those of the task, the learner and the preset that are named.
    """

    config: OmitArgPrefixes[Config[Own]]
    out: Path
    """Run directory; made here, and must not hold a run already."""
    resume: bool = False
    """Go on with the run in --out, with the settings saved there."""
    quiet: bool = False
    """Show no progress."""

    def run(self) -> None:
        """Train, then say what came out."""
        if self.resume and Run.open(self.out).config() != self.config:
            raise UserError("a resumed run keeps its settings: give --resume and --out alone, or start a new run")
        run = train(self.config, out=self.out, resume=self.resume, quiet=self.quiet)
        result, columns = run.result(), run.spec().columns
        if columns and columns.dropped and not self.quiet and is_first_process():
            rows = f"{columns.dropped} row{'s' * (columns.dropped > 1)}"
            print(f"dropped {rows} with missing values", file=sys.stderr)
        if result and not self.quiet and is_first_process():
            figures = "  ".join(f"{name} {value:.4g}" for name, value in result["validation"].items())
            command = ["metavrf", "evaluate", str(self.out)]
            command += [word for file in self.plugin for word in ("--plugin", str(file))]
            print(f"best at step {result['best_step']}: {figures}", file=sys.stderr)
            show(f"test it with: {shlex.join(command)}", sys.stderr)


def prepare(arguments: Sequence[str], learner: str = "metavrf", command: Any = Train) -> tuple[Any, Any, list[str]]:
    """The command's class for the learner that is asked for, its defaults, and the arguments for the parser.

    ``learner`` is taken where none is asked for; ``command`` has the options of a training, and others.
    """
    arguments = list(arguments)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--task", *arguments]  # the task may stand first, without the option's name
    load_plugins([Path(file) for file in _values(arguments, "--plugin")])
    config = starting_config(arguments, learner)
    needed = {item.name: tyro.MISSING for item in fields(command) if item.name in ("out", "over")}
    return command[type(config.model)], command(config=config, **needed), arguments


def starting_config(arguments: Sequence[str], learner: str) -> Config[Any]:
    """Defaults, which depend on the task, the learner, the preset and the context that the arguments name."""
    if "--resume" in arguments:
        return Run.open(_value(arguments, "--out", "")).config()
    name = _value(arguments, "--preset", "default")
    start = (
        _value(arguments, "--task", DEFAULT_TASK),
        _value(arguments, "--learner", learner),
        name if name in PRESETS else "default",  # if unknown, the parser says so
    )
    context = _value(arguments, "--context", "")
    method = LEARNERS[start[1]]
    asked = {"context": context} if context in ("lstm", "bilstm") and hasattr(method.Settings, "context") else {}
    if group := _value(arguments, "--group", ""):
        asked["group"] = group
    return Config.of(*start, **asked)


def _values(arguments: Sequence[str], name: str) -> list[str]:
    """All values that an option is given."""
    after = [value for before, value in pairwise(arguments) if before == name]
    return after + [argument.split("=", 1)[1] for argument in arguments if argument.startswith(f"{name}=")]


def _value(arguments: Sequence[str], name: str, fallback: str) -> str:
    return next(iter(_values(arguments, name)), fallback)
