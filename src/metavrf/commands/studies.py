"""The commands that train more than one run: demo and study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from metavrf.commands.plugins import Plugins
from metavrf.errors import UserError
from metavrf.reports import check_picture, draw_figure, draw_kernels, print_rows, print_table, report, show


@dataclass
class Demo:
    """Learn to fit sine curves from a few points: trains, prints a table, draws two pictures. Under two minutes."""

    shot: int = 5
    """Points per curve that it is tested with; it is trained on 2 to 20."""
    iterations: int = 1500
    """Training steps of many kernels; those of one kernel take as many."""
    seed: int = 0
    """Seed of the training."""
    out: Path = Path("demo")
    """Directory for the runs and the pictures."""

    def run(self) -> None:
        """Train many kernels, one shared kernel and plain random features; compare them, draw them."""
        from metavrf.config import Config
        from metavrf.model import load
        from metavrf.runs.directory import Run
        from metavrf.runs.training import train
        from metavrf.testing.compare import compare

        common: dict[str, Any] = {"iterations": self.iterations, "seed": self.seed, "validate_every": 500}
        wanted: dict[str, dict[str, Any]] = {
            "many kernels": {"learner": "metavrf", "components": 32, "guards": 5},
            "one shared kernel": {"learner": "shared", "train_kernel": "exact"},
            "plain RFF": {"learner": "rff"},
        }
        paths = []
        for name, options in wanted.items():
            path = self.out / name.lower().replace(" ", "-")
            config = Config.of("sine", **common, **options, shot=self.shot, validate_tasks=500)
            resume = Run(path).config_file.exists()
            if resume and Run(path).config() != config:
                raise UserError(f"{path} holds a demo with other settings: choose another --out, or remove it")
            train(config, out=path, resume=resume)
            paths.append(path)
        models = {name: load(path) for name, path in zip(wanted, paths, strict=True)}
        rows = compare(list(models.values()), tasks=1000, shot=self.shot)
        print_rows(rows)
        drawn = {name: model for name, model in models.items() if name != "plain RFF"}
        pictures = [
            draw_figure(drawn, rows[0].evaluation, self.out / "fits.png"),
            draw_kernels(models["many kernels"], self.out / "kernels.png"),
        ]
        for picture in pictures:
            show(f"picture: {picture}")


@dataclass
class Kernels(Plugins):
    """Draw what the points of a few curves say of their kernel, as they come in one by one."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training on functions, or a model that comes with the package (sine)."""
    out: Path
    """The picture to draw (.png, .pdf or .svg)."""
    tasks: int = 3
    """Number of curves."""
    seed: int = 0
    """Seed of the curves."""

    def run(self) -> None:
        """Draw the weights over frequency, and k(x, ·)."""
        self.load_plugins()
        from metavrf.model import load

        check_picture(self.out)
        show(f"picture: {draw_kernels(load(self.run_directory), self.out, self.tasks, self.seed)}")


ITERATIONS = 20_000


@dataclass
class Study:
    """Train and test many runs of one question, and write one table: see docs/studies.md."""

    name: Positional[
        Literal[
            "contexts",
            "bases",
            "rff",
            "maml",
            "many-kernels",
            "train-kernel",
            "moves",
            "streams",
            "drift",
            "sine-maml",
            "neural-processes",
            "neural-processes-mixed",
            "mixed",
            "omniglot",
            "cifar-fs",
            "mixed-images",
            "class-evidence",
        ]
    ]
    """Of one kernel: contexts x seeds x shots; bases, fixed or resampled, and their kinds; rff, the baseline; maml with
    1, 5 and 10 inner steps. Of many kernels (docs/inference.md): many-kernels, train-kernel, moves, streams, drift,
    sine-maml, neural-processes, neural-processes-mixed, mixed, omniglot, cifar-fs, mixed-images, class-evidence."""
    out: Path
    """Directory for the runs; a study that was interrupted goes on where it was."""
    save: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the table as JSON to this file."""
    chart: Annotated[Path | None, arg(metavar="PATH")] = None
    """Draw the error against the position in the stream to this file (studies 'streams' and 'drift')."""
    shots: tuple[int, ...] = (3, 5, 10)
    """Shots to train for and test at."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings."""
    context_inputs: tuple[Literal["x", "xy"], ...] = ("x", "xy")
    """What the context sees (study 'contexts')."""
    iterations: Annotated[int | None, arg(metavar="INT")] = None
    """Training steps of each run; 20,000 of one kernel, the study's own of many."""
    workers: int = 2
    """Trainings at a time, one thread each."""

    def run(self) -> None:
        """Run the study and print its table."""
        from metavrf.studies import inference, sine

        if not (self.shots and self.seeds and self.context_inputs):
            raise UserError("a study needs at least one of --shots, --seeds and --context-inputs each")
        if self.name in inference.PLANS:
            rows, limits = inference.run(self.name, self.out, self.seeds, self.iterations, self.workers)
            lines = inference.over_seeds(rows)
            if self.chart:
                from metavrf.plots import plot_positions

                positions = inference.positions(rows)
                if not positions:
                    raise UserError(f"--chart is for studies of streams, not for {self.name}")
                plot_positions(positions, self.chart, f"{self.name}: 3 points per curve, mean over seeds")
        else:
            trainings = sine.variants(self.name, self.shots, self.seeds, self.context_inputs)
            rows = sine.study(trainings, self.out, self.iterations or ITERATIONS, self.workers)
            lines, limits = sine.over_seeds(rows), sine.limit_rows(self.shots)
        print_table(list(lines[0]), [list(line.values()) for line in lines])
        report(
            {"study": self.name, "iterations": self.iterations, "over_seeds": lines, "limits": limits, "rows": rows},
            None,
            self.save,
            self.seeds[0],
        )
