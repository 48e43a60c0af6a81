"""The commands on runs: train, evaluate, compare, info."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from metavrf.config import TEST_SEED, Config, Views
from metavrf.errors import UserError
from metavrf.reports import (
    check_picture,
    comparison_table,
    draw_figure,
    number,
    print_rows,
    print_table,
    report,
    row_dict,
)


@dataclass
class Train:
    """Train a learner on tasks: metavrf train omniglot --way 5 --shot 1 --context bilstm --out RUN."""

    config: OmitArgPrefixes[Config]
    out: Path
    """Run directory; made here, and must not hold a run already."""
    resume: bool = False
    """Go on with the run in --out, with the settings saved there."""
    plugin: UseAppendAction[list[Path]] = field(default_factory=list)
    """Python file that registers task families of your own."""
    quiet: bool = False
    """Show no progress."""

    def run(self) -> None:
        """Train, then say what came out."""
        load_plugins(self.plugin)
        from metavrf.training import train

        if self.resume:
            from metavrf.run import Run

            refuse_changes(Run.open(self.out).config(), self.config)
        run = train(self.config, out=self.out, resume=self.resume, quiet=self.quiet)
        result = run.result()
        if result and not self.quiet and is_first_process():
            figures = "  ".join(f"{name} {value:.4g}" for name, value in result["validation"].items())
            print(f"best at step {result['best_step']}: {figures}", file=sys.stderr)
            print(f"test it with: metavrf evaluate {self.out}", file=sys.stderr)


@dataclass(kw_only=True)
class TestOptions:
    """What evaluate and compare have in common."""

    tasks: Annotated[int | None, arg(aliases=["--episodes"])] = None
    """Number of test tasks (episodes); 4,000 of functions, 3,000 of classes."""
    way: int | None = None
    """Classes a task, if other than in training."""
    shot: int | None = None
    """Support samples, if other than in training; needed to compare runs trained for different ones."""
    query: int | None = None
    """Query samples a class; 15, unless the run says otherwise."""
    seed: int = TEST_SEED
    """Seed of the test tasks."""
    protocol: Literal["inductive", "transductive", "both"] = "inductive"
    """May predictions use the other queries (normalise by the whole episode)? 'both' shows both."""
    statistics: Literal["running", "support"] | None = None
    """What the inductive protocol normalises by: running statistics (the default), or the support's own."""
    own_share: float = 1.0
    """Weight of the episode's (or the support's) statistics, where they are used; the rest is that of running ones."""
    views: Views = "one"
    """Take the mean of a picture's features over views of it: its mirror image, it shifted four ways, or both. Still
    inductive; takes 2, 5 or 10 times as long to embed."""
    part: Literal["test", "val"] = "test"
    """Classes to test on: 'val' for validation classes, on which anything may be chosen before the test."""
    within_alphabet: bool = False
    """Draw all classes of an omniglot task from one alphabet: much harder."""
    stream: int | None = None
    """Tasks of a stream, if other than in training: each may look back at the supports of those before it."""
    adaptivity: bool = False
    """Also answer the tasks with the mean inference and with another task's: does the learner infer anything?"""
    data: str | None = None
    """Folder of the data sets, or the feature file, if other than in training."""
    plot: Path | None = None
    """Draw a few test tasks to this file (.png, .pdf or .svg)."""
    save: Path | None = None
    """Write the figures with their provenance to this JSON file."""
    json: bool = False
    """Print one JSON object instead of a table."""
    plugin: UseAppendAction[list[Path]] = field(default_factory=list)
    """Python file that registers task families of your own."""

    def options(self) -> dict[str, Any]:
        """What the package's functions are asked."""
        shape = ("tasks", "way", "shot", "query", "seed", "within_alphabet", "data", "part", "stream", "adaptivity")
        return {name: getattr(self, name) for name in (*shape, "statistics", "own_share", "views")}

    def protocols(self) -> list[str]:
        """One or two."""
        return ["inductive", "transductive"] if self.protocol == "both" else [self.protocol]


@dataclass
class Evaluate(TestOptions):
    """Test a run on tasks that are fixed by a seed."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training, a model that comes with the package (omniglot, sine, photos), or hf://owner/name."""
    on: str | None = None
    """A family of functions to test on, if other than the one trained on."""
    bases: int | None = None
    """Use another number of random features."""
    samples: int | None = None
    """Use another number of posterior samples."""
    draw: int | None = None
    """Draw the bases anew from this seed."""

    def run(self) -> None:
        """Evaluate, print, draw, save."""
        load_plugins(self.plugin)
        from metavrf import api

        check_picture(self.plot)
        bases: dict[str, Any] = {"bases": self.bases, "samples": self.samples, "draw": self.draw}
        asked = {"on": self.on, **bases}
        results = [
            api.evaluate(self.run_directory, protocol=protocol, **asked, **self.options())
            for protocol in self.protocols()
        ]
        if self.plot:
            learner = api.load(self.run_directory, **bases)
            draw_figure({str(self.run_directory): learner}, self.run_directory, results[0], self.plot)
        if len(results) == 1:
            report(results[0].to_dict(), self.json, self.save, self.seed, [self.run_directory])
            return
        values = {result.protocol: result.to_dict() for result in results}
        report(values, self.json or None, self.save, self.seed, [self.run_directory])
        if not self.json:
            names = dict.fromkeys(name for value in values.values() for name in value)
            lines = [[name, *(number(value.get(name, "")) for value in values.values())] for name in names]
            print_table(["", *values], lines)


@dataclass
class Compare(TestOptions):
    """Test runs on the same tasks, with paired differences to the first and the limits no learner can beat."""

    runs: Annotated[Positional[list[Path]], arg(metavar="RUN")]
    """Two runs or more."""
    floor: bool = True
    """Show the limits too."""
    chart: Path | None = None
    """Draw the figures with their intervals to this file (.png, .pdf or .svg)."""
    markdown: bool = False
    """Print the table as Markdown."""

    def run(self) -> None:
        """Compare, print, draw, save."""
        load_plugins(self.plugin)
        from metavrf import api

        check_picture(self.plot)
        check_picture(self.chart)
        rows = api.compare(self.runs, floor=self.floor, protocols=self.protocols(), **self.options())
        if self.plot:
            learners = {str(path): api.load(path) for path in self.runs}
            draw_figure(learners, self.runs[0], rows[0].evaluation, self.plot)
        if self.chart:
            from metavrf.plots import plot_comparison

            plot_comparison(rows, self.chart, comparison_table(rows)[0].partition(";")[0])
        if not self.json:
            print_rows(rows, markdown=self.markdown)
        report({"rows": [row_dict(row) for row in rows]}, self.json or None, self.save, self.seed, self.runs)


@dataclass
class Info:
    """Say what a run is: settings, progress, result."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training, a model that comes with the package (omniglot, sine, photos), or hf://owner/name."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> None:
        """Print settings and result, and a packed model's card."""
        from metavrf.run import Run

        run = Run.open(self.run_directory)
        config, metrics, result = run.config(), run.metrics(), run.result()
        values = {
            "run": str(run.path),
            "finished": result is not None,
            "step": metrics[-1]["step"] if metrics else (result or {}).get("steps", 0),
            "iterations": config.training.iterations,
            "config": dataclasses.asdict(config),
            "last_validation": metrics[-1] if metrics else None,
            "result": result,
            "card": run.card(),
        }
        if self.json:
            print(json.dumps(values))
            return
        if values["card"]:
            from metavrf.pack import card_text

            print(card_text(run))
        print(f"# {run.path}: step {values['step']} of {values['iterations']}")
        if result is None:
            print(f"# not finished; continue with: metavrf train --resume --out {run.path}")
        print(config.to_toml())
        print(json.dumps(result or values["last_validation"], indent=2))


def load_plugins(files: Sequence[Path]) -> None:
    """Run Python files that the user names, so that what they register is known."""
    for file in files:
        if not file.is_file():
            raise UserError(f"the plugin {file} does not exist")
        try:
            runpy.run_path(str(file), run_name=f"metavrf_plugin_{file.stem}")
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the plugin {file} failed: {type(error).__name__}: {reason}") from error


def is_first_process() -> bool:
    """Whether this is the process of a run that speaks to the user."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0


def refuse_changes(saved: Config, wanted: Config) -> None:
    """A resumed run keeps its settings."""
    if saved != wanted:
        raise UserError("a resumed run keeps its settings: give --resume and --out alone, or start a new run")
