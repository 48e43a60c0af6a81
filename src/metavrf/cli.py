"""The command line: thin; every command parses its options and calls the package."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg, subcommand

from metavrf.bench.command import Benchmark
from metavrf.commands import Export, Fit, Predict
from metavrf.config import PRESETS, TEST_SEED, Config, DataSettings, preset
from metavrf.errors import UserError
from metavrf.memory import keep_freed_memory
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
from metavrf.serve.command import Serve


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
    within_alphabet: bool = False
    """Draw all classes of an omniglot task from one alphabet: much harder."""
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
        names = ("tasks", "way", "shot", "query", "seed", "statistics", "within_alphabet", "data")
        return {name: getattr(self, name) for name in names}

    def protocols(self) -> list[str]:
        """One or two."""
        return ["inductive", "transductive"] if self.protocol == "both" else [self.protocol]


@dataclass
class Evaluate(TestOptions):
    """Test a run on tasks that are fixed by a seed."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training, a model that comes with the package (omniglot, sine, photos), or hf://owner/name."""
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
        results = [
            api.evaluate(self.run_directory, protocol=protocol, **bases, **self.options())
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
            lines = [[name, *(number(value[name]) for value in values.values())] for name in results[0].to_dict()]
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


@dataclass
class Embed:
    """Write the features of a data set to a file that 'metavrf train' takes as its data."""

    task: Positional[str]
    """A named data set, a Parquet file or a folder of class folders."""
    out: Path
    """The feature file to write (.safetensors)."""
    by: str = "efficientnet-lite0"
    """What embeds: efficientnet-lite0 (needs the extra 'deep'), a run, or FILE.py:NAME of a torch module of yours."""
    resolution: int = 160
    """Side to which efficientnet-lite0 resizes the pictures."""
    settings: OmitArgPrefixes[DataSettings] = field(default_factory=DataSettings)

    def run(self) -> None:
        """Embed, and say what to do with the file."""
        from metavrf.features import write_features

        shape, description = write_features(self.task, self.by, self.out, self.settings, resolution=self.resolution)
        label = f" ({description.pretraining}-pretrained)" if description.pretraining else ""
        print(f"{shape[0]} samples, {shape[1]} features{label}: metavrf train {self.out} --out RUN")


@dataclass
class Pack:
    """Make a small copy of a finished run to pass on, tested and with a card: the layout of the Hugging Face hub."""

    run_directory: Annotated[Positional[Path], arg(metavar="RUN")]
    """The --out of a training."""
    out: Path
    """Folder for the packed model."""
    ways: tuple[int, ...] = (5, 20)
    """Ways to test a model of classes at."""
    shots: tuple[int, ...] = ()
    """Shots to test it at; by default 1 and 5 of classes, 2, 3, 5, 10 and 20 of functions."""
    tasks: Annotated[int | None, arg(aliases=["--episodes"])] = None
    """Number of test tasks (episodes); 4,000 of functions, 3,000 of classes."""
    transductive_ways: tuple[int, ...] = (5,)
    """Ways to test the transductive protocol at too, which takes long at many."""
    transductive_tasks: Annotated[int, arg(aliases=["--transductive-episodes"])] = 600
    """Test tasks of the transductive protocol."""

    def run(self) -> None:
        """Pack, and print the card."""
        from metavrf.pack import save_pretrained

        folder = save_pretrained(
            self.run_directory,
            self.out,
            ways=self.ways,
            shots=self.shots,
            tasks=self.tasks,
            transductive_ways=self.transductive_ways,
            transductive_tasks=self.transductive_tasks,
        )
        print((folder / "README.md").read_text())


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


def load_plugins(files: Sequence[Path]) -> None:
    """Run Python files that the user names, so that what they register is known."""
    import runpy

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


def parse(arguments: Sequence[str]) -> Any:
    """The command that ``arguments`` ask for."""
    default = Train(config=starting_config(arguments), out=tyro.MISSING)
    commands = (
        Annotated[Train, subcommand("train", default=default)],
        Annotated[Evaluate, subcommand("evaluate")],
        Annotated[Compare, subcommand("compare")],
        Annotated[Learners, subcommand("learners")],
        Annotated[Info, subcommand("info")],
        Annotated[Data, subcommand("data")],
        Annotated[Embed, subcommand("embed")],
        Annotated[Pack, subcommand("pack")],
        Annotated[Fit, subcommand("fit")],
        Annotated[Predict, subcommand("predict")],
        Annotated[Export, subcommand("export")],
        Annotated[Serve, subcommand("serve")],
        Annotated[Demo, subcommand("demo")],
        Annotated[Study, subcommand("study")],
        Annotated[Benchmark, subcommand("bench")],
    )
    if arguments[:1] == ["train"] and len(arguments) > 1 and not arguments[1].startswith("-"):
        arguments = ["train", "--task", *arguments[1:]]  # the task may stand first, without the option's name
    command: Any = Union[commands]  # noqa: UP007 - made of a tuple
    description = "Few-shot learning with kernels inferred for each task (MetaVRF, ICML 2020)."
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                command,
                args=list(arguments),
                prog="metavrf",
                description=description,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as stop:
        if stop.code:
            raise UserError(one_sentence(complaint.getvalue())) from None
        raise


def one_sentence(boxed: str) -> str:
    """The text of an error that stands in a drawn box, on one line."""
    lines = [line.strip("│ ") for line in boxed.splitlines()]
    return " ".join(line for line in lines if line.strip("─-╭╮╰╯ ") and not line.startswith("╭"))


def starting_config(arguments: Sequence[str]) -> Config:
    """Defaults of 'train', which depend on the task, the learner and the preset that its arguments name."""

    def option(name: str, fallback: str) -> str:
        for index, argument in enumerate(arguments):
            if argument.startswith(f"{name}="):
                return argument.split("=", 1)[1]
            if argument == name and index + 1 < len(arguments):
                return arguments[index + 1]
        return fallback

    if "--resume" in arguments and arguments[:1] == ["train"]:
        from metavrf.run import Run

        return Run.open(option("--out", "")).config()
    task = arguments[1] if len(arguments) > 1 and not arguments[1].startswith("-") else "sine"
    learner, name = option("--learner", "metavrf"), option("--preset", "default")
    return preset(task, learner, name if name in PRESETS else "default")  # if not, the parser says so


def say(sentence: str) -> None:
    """One sentence on standard error, from one process of a run."""
    if is_first_process():
        print(f"metavrf: {sentence}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: exit code 2 and one sentence for what a user can mend."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"metavrf {version('metavrf')}")
        return
    try:
        keep_freed_memory()
        parse(arguments).run()
    except UserError as error:
        say(str(error))
        sys.exit(2)
    except KeyboardInterrupt as stop:
        say(str(stop) or "stopped")
        sys.exit(getattr(stop, "exit_code", 130))
    except BrokenPipeError:  # the reader of our output has gone, as in 'metavrf ... | head'
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        sys.exit(0)
