"""The commands that train more than one run: demo and study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from metavrf.errors import UserError
from metavrf.presets import preset
from metavrf.reports import draw_figure, print_rows, print_table, report


@dataclass
class Demo:
    """Learn to fit sine curves from a few points: trains, prints a table, draws a picture. About a minute."""

    contexts: tuple[Literal["none", "lstm", "bilstm"], ...] = ("none", "lstm", "bilstm")
    """Which contexts to train."""
    shot: int = 5
    """Points a curve."""
    iterations: int = 2000
    """Training steps each."""
    seed: int = 0
    """Seed of the training."""
    out: Path = Path("demo")
    """Directory for the runs and the picture."""

    def run(self) -> None:
        """Train each context and plain random features, compare them, draw them."""
        from metavrf import api
        from metavrf.run import Run
        from metavrf.training import train

        wanted: dict[str, dict[str, Any]] = {f"MetaVRF {context}": {"context": context} for context in self.contexts}
        wanted["plain RFF"] = {"learner": "rff"}
        paths = []
        for name, options in wanted.items():
            path = self.out / name.lower().replace(" ", "-")
            learner = options.pop("learner", "metavrf")
            config = preset("sine", learner).with_options(
                **options, shot=self.shot, iterations=self.iterations, seed=self.seed, validate_every=500
            )
            resume = Run(path).config_file.exists()
            if resume and Run(path).config() != config:
                raise UserError(f"{path} holds a demo with other settings: choose another --out, or remove it")
            train(config, out=path, resume=resume)
            paths.append(path)
        rows = api.compare(paths, tasks=1000)
        print_rows(rows)
        learners = {name: api.load(path) for name, path in zip(wanted, paths, strict=True) if name != "plain RFF"}
        picture = draw_figure(learners, paths[0], rows[0].evaluation, self.out / "fits.png")
        print(f"picture: {picture}")


@dataclass
class Study:
    """Train and test many runs of one question, and write one table: see docs/studies.md."""

    name: Positional[Literal["contexts", "bases", "rff", "maml"]]
    """contexts: contexts x seeds x shots. bases: fixed or resampled, and the kinds of bases. rff: the baseline.
    maml: with 1, 5 and 10 inner steps."""
    out: Path
    """Directory for the runs; a study that was interrupted goes on where it was."""
    save: Path | None = None
    """Write the table as JSON to this file."""
    shots: tuple[int, ...] = (3, 5, 10)
    """Shots to train for and test at."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings."""
    context_inputs: tuple[Literal["x", "xy"], ...] = ("x", "xy")
    """What the context sees (study 'contexts')."""
    iterations: int = 20_000
    """Training steps of each run."""
    workers: int = 2
    """Trainings at a time, one thread each."""

    def run(self) -> None:
        """Run the study and print its table."""
        from metavrf.studies import sine

        if not (self.shots and self.seeds and self.context_inputs):
            raise UserError("a study needs at least one of --shots, --seeds and --context-inputs each")
        rows = sine.study(
            sine.variants(self.name, self.shots, self.seeds, self.context_inputs),
            self.out,
            self.iterations,
            self.workers,
        )
        lines = sine.over_seeds(rows)
        limits = sine.limit_rows(self.shots)
        print_table(list(lines[0]), [list(line.values()) for line in lines])
        report(
            {"study": self.name, "iterations": self.iterations, "over_seeds": lines, "limits": limits, "rows": rows},
            None,
            self.save,
            self.seeds[0],
        )
