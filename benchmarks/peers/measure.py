"""Our step and evaluation beside those of other packages, each in an environment of its own, by turns in one run.

    python benchmarks/peers/measure.py [--rounds 11] [--seconds 60] [--save FILE] [--markdown] [--quick]

A training step, an evaluation, one new task from its samples to its answers, and how good each is after the same time
of training.

Every peer runs under the C library's default allocator and under our settings of it, else one would only be measuring
malloc. One that does not install or does not run is reported so, and left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import show, watch
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.learners.measuring import measure as measure_learner
from metavrf.memory import allocator_variables, keep_freed_memory
from metavrf.randomness import stream
from metavrf.reports import check_picture, report
from metavrf.tasks.source import ClassTasks, open_tasks
from speed.accuracy import steps_within
from speed.measure import DEFAULT, OURS, Bench, machine, variables
from speed.pieces import omniglot_at_hand
from speed.results import Aim, Results, Row, Section
from speed.step import make_trainer
from speed.turns import Turn, Worker, take_turns, timed
from speed.work import Work

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
SOURCE = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(ROOT / "src")])}
RACE_TASKS = 300
TNP = "metavrf, transformer neural process"
KINDS = ("step", "evaluation", "adaptation", "sine", "sine-adaptation")


@dataclass(frozen=True)
class Peer:
    """A package that is measured beside ours: how it is installed, and what it can do."""

    name: str
    installs: tuple[tuple[str, ...], ...]
    """Arguments of pip, one call after the other."""
    step: Mapping[str, str]
    """Labels of training steps on pictures, by piece."""
    evaluation: Mapping[str, str]
    sine: Mapping[str, str]
    adaptation: Mapping[str, str]
    adaptation_sine: Mapping[str, str]
    races: Mapping[str, tuple[str, str]]
    """What is trained for as long as ours: of which kind, and the name of it in the peer's script, by label."""

    def pieces(self) -> dict[str, Mapping[str, str]]:
        """Labels and pieces, by section."""
        return {
            "step": self.step,
            "evaluation": self.evaluation,
            "adaptation": self.adaptation,
            "sine": self.sine,
            "sine-adaptation": self.adaptation_sine,
        }

    def race(self, options: Options, work: Work, name: str, data: Path) -> dict[str, Any]:
        """Train it for that long in a process of its own, and give back its figure."""
        command = [str(self.python(options.environments)), str(HERE / f"peer_{self.name}.py"), work.to_json()]
        command += [name, str(data), str(options.seconds)]
        environment = variables(OURS, options.threads) | allocator_variables() | SOURCE
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise UserError(f"its training failed: {said[-1]}")
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def python(self, folder: Path) -> Path:
        """The interpreter of its environment."""
        return folder / self.name / "bin" / "python"

    def install(self, folder: Path) -> None:
        """Make its environment, unless that is done."""
        done = folder / self.name / ".ready"
        if done.exists():
            return
        _run([sys.executable, "-m", "venv", "--clear", str(folder / self.name)])
        for arguments in self.installs:
            pip = [str(self.python(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, "--constraint", str(CONSTRAINTS), *arguments])
        done.touch()

    def worker(self, folder: Path, work: Work, allocator: str, threads: int) -> Worker:
        """A process of it; our package lends it the sizes of the work and the manner of taking turns, no more."""
        command = [str(self.python(folder)), str(HERE / f"peer_{self.name}.py"), work.to_json()]
        settings = allocator_variables() if allocator == OURS else {}
        return Worker(self.name, command, variables(allocator, threads) | settings | SOURCE)


PEERS = (
    Peer(
        "gpytorch",
        (("gpytorch",),),
        {},
        {},
        {"GPyTorch, deep kernel": "deep kernel step"},
        {},
        {"GPyTorch, deep kernel": "deep kernel adaptation"},
        {f"GPyTorch, deep kernel, {lr}": ("curves", lr) for lr in ("lr 0.001", "lr 0.01")},
    ),
    Peer(
        "easyfsl",
        (("easyfsl==1.5.0",),),
        {"easyfsl, prototypical": "prototypical step"},
        {"easyfsl, prototypical": "prototypical evaluation"},
        {},
        {"easyfsl, prototypical": "prototypical adaptation"},
        {},
        {"easyfsl, prototypical": ("pictures", "prototypical")},
    ),
    Peer(
        "learn2learn",  # older than today's tools: it is built with those of its time, its C code made anew by Cython
        (
            ("torch", "torchvision", "numpy", "scipy", "requests", "tqdm", "packaging", "cloudpickle", "gym-notices"),
            ("--no-deps", "setuptools<66", "wheel<0.44", "cython<3", "pip<23.3"),
            ("--no-deps", "--no-build-isolation", "gym==0.26.2"),
            ("--no-deps", "--no-build-isolation", "--global-option", "build_ext", "learn2learn==0.2.0"),
        ),
        {"learn2learn, prototypical": "prototypical step", "learn2learn, MAML, 1 step": "maml step"},
        {"learn2learn, prototypical": "prototypical evaluation", "learn2learn, MAML, 1 step": "maml evaluation"},
        {},
        {"learn2learn, prototypical": "prototypical adaptation", "learn2learn, MAML, 1 step": "maml adaptation"},
        {},
        {"learn2learn, prototypical": ("pictures", "prototypical")},
    ),
)


def _run(command: Sequence[str]) -> None:
    environment = os.environ | {"CYTHON_FORCE_REGEN": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it said nothing"]
        raise UserError(f"{' '.join(command[:1])} failed: {said[-1].strip()}")


@dataclass
class Options:
    """Measure our package beside others."""

    rounds: int = 11
    """Rounds, in each of which every variant takes its turn."""
    threads: int = 0
    """CPU threads; 0 for PyTorch's own choice."""
    seconds: float = 60.0
    """Training of each in the comparison at equal time; 0 to leave that out."""
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)
    """Which to measure."""
    only: tuple[str, ...] = KINDS
    """Which kinds of work, beside training for the same time."""
    environments: Path = ROOT / ".venv-peers"
    """Folder of the peers' environments."""
    save: Path | None = None
    """Write all figures with their provenance to this JSON file."""
    chart: Path | None = None
    """Draw the times to this file (.png, .pdf or .svg)."""
    markdown: bool = False
    """Print Markdown."""
    quick: bool = False
    """Tiny sizes, to see that everything runs; the figures say nothing."""


def measure(options: Options, peers: Sequence[Peer]) -> Results:
    """All peers that run, and ours, in the same rounds."""
    work = Work.quick() if options.quick else Work()
    skipped: list[str] = []
    machine_facts: dict[str, Any] = {}
    turns: dict[str, list[Turn]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        bench = Bench(work, options.rounds, options.threads, watch)
        ours = {name: stack.enter_context(bench.worker(name)) for name in (OURS, DEFAULT)}
        machine_facts = machine({name: worker.facts for name, worker in ours.items()})
        for allocator, worker in ours.items():
            label = _labels(allocator)
            turns["step"] += [
                Turn(label("metavrf, MetaVRF"), worker, "step"),
                Turn(label("metavrf, prototypical"), worker, "prototypical step"),
                Turn(label("metavrf, MAML, 1 step"), worker, "maml step"),
            ]
            turns["evaluation"].append(Turn(label("metavrf, MetaVRF"), worker, "evaluation", warm=False))
            sine = {
                "metavrf, one kernel, exact": "sine exact",
                "metavrf, one kernel, exact, no KL": "sine exact, no KL",
                f"metavrf, {work.kernels} kernels, exact": "sine many",
                "metavrf, one kernel by random features, biLSTM": "sine bilstm",
                TNP: "sine tnp",
            }
            turns["sine"] += [Turn(label(name), worker, piece, work.calls) for name, piece in sine.items()]
            turns["adaptation"].append(Turn(label("metavrf, MetaVRF"), worker, "adapt pictures", work.calls))
            curves = {"metavrf, MetaVRF, many kernels": "adapt curve, metavrf", TNP: "adapt curve, tnp"}
            turns["sine-adaptation"] += [Turn(label(name), worker, piece, work.calls) for name, piece in curves.items()]
        for peer in peers:
            try:
                watch(f"installing {peer.name}", 0, 1)
                peer.install(options.environments)
                for allocator in (DEFAULT, OURS):
                    worker = stack.enter_context(peer.worker(options.environments, work, allocator, options.threads))
                    machine_facts[peer.name] = worker.facts["version"]
                    label = _labels(allocator)
                    for kind in options.only:
                        for name, piece in peer.pieces()[kind].items():
                            worker.turn(piece)  # what does not run is found out before the rounds
                            calls = 1 if kind in ("step", "evaluation") else work.calls
                            turns[kind].append(Turn(label(name), worker, piece, calls))
            except UserError as error:
                skipped.append(f"{peer.name}: {error}")
                gone = [name for pieces in peer.pieces().values() for name in pieces]
                turns = {
                    kind: [turn for turn in members if not turn.label.startswith(tuple(gone))]
                    for kind, members in turns.items()
                }
        sections = [
            _section(kind, members, work, options.rounds)
            for kind, members in turns.items()
            if members and kind in options.only
        ]
    if options.seconds:
        running = [peer for peer in peers if not any(text.startswith(f"{peer.name}: ") for text in skipped)]
        sections += races(options, running, work, skipped)
    versions = [str(machine_facts[peer.name]) for peer in peers if peer.name in machine_facts]
    if versions:
        sections[0].notes.append(f"Versions: {', '.join(versions)}.")
    return Results(sections, peer_aims(sections), machine_facts, skipped)


def _labels(allocator: str) -> Any:
    return lambda name: f"{name}, {'our' if allocator == OURS else 'default'} allocator"


def _section(kind: str, turns: Sequence[Turn], work: Work, rounds: int) -> Section:
    """One kind of work by all."""
    rounds = min(rounds, 3) if kind == "evaluation" else rounds
    seconds = take_turns(turns, rounds, lambda done: watch(kind, done, rounds))
    titles = {
        "step": f"A training step: {work.label}",
        "evaluation": f"Evaluation: an episode of {work.way}-way {work.shot}-shot with {work.query} queries",
        "adaptation": f"A new task of pictures, {work.way}-way {work.shot}-shot: to {work.query} answers per class",
        "sine-adaptation": f"A new curve: {work.sine_shot} points to {work.sine_query} answers",
        "sine": f"Sine: a training step of {work.sine_tasks} tasks of {work.sine_shot} and {work.sine_query} points",
    }
    notes = {
        "evaluation": [
            f"Ours is the mean of {work.episodes} episodes whose images are embedded once; peers embed each anew."
        ],
        "sine-adaptation": [
            "No package of transformer neural processes is on the package index: the one measured is our own `tnp`."
        ],
    }
    rows = []
    for turn in turns:
        each = 1
        if kind == "evaluation":
            each = work.episodes if turn.label.startswith("metavrf") else work.peer_episodes
        rows.append(Row(turn.label, [1e3 * value / each for value in seconds[turn.label]]))
    return Section(kind, titles[kind], "ms", rows, turns[0].label, notes=notes.get(kind, []))


def races(options: Options, peers: Sequence[Peer], work: Work, skipped: list[str]) -> list[Section]:
    """Each trained for the same time, one after the other; then all are tested on the same tasks."""
    pictures = omniglot_at_hand() and not options.quick
    kinds = ("pictures", "curves") if pictures else ("curves",)
    if not pictures:
        why = "this run is a quick one" if options.quick else "Omniglot's files are not here"
        skipped.append(f"accuracy on pictures at equal time: {why}")
    keep_freed_memory()  # as the peers are given it
    if options.threads:
        torch.set_num_threads(options.threads)
    found: dict[str, list[Row]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as place:
        for kind in kinds:
            ours = {"metavrf, MetaVRF": "metavrf", **({TNP: "tnp"} if kind == "curves" else {})}
            for label, learner in ours.items():
                watch(f"training {label}", 0, 1)
                config = Config.of("omniglot" if kind == "pictures" else "sine", learner).with_options(way=5)
                config = config.with_options(shot=1 if kind == "pictures" else 5, threads=options.threads)
                figure, note = race_ours(config, options.seconds, Path(place))
                found[kind].append(Row(label, [figure], note))
            for peer in peers:
                for label, (its_kind, name) in peer.races.items():
                    if its_kind != kind:
                        continue
                    watch(f"training {label}", 0, 1)
                    try:
                        answer = peer.race(options, work, name, Path(place))
                        found[kind].append(Row(label, [answer["figure"]], f"{answer['steps']:,} steps"))
                    except UserError as error:
                        skipped.append(f"{label}: {error}")
    after = f"{RACE_TASKS} validation tasks, after {options.seconds:g} s of training each"
    titles = {"pictures": f"Omniglot, 5-way 1-shot, {after}", "curves": f"Sine curves of 5 points, {after}"}
    units = {"pictures": "accuracy (%)", "curves": "mean squared error"}
    return [Section(f"race-{kind}", titles[kind], units[kind], rows, rows[0].name) for kind, rows in found.items()]


def race_ours(config: Config[Any], seconds: float, place: Path) -> tuple[float, str]:
    """One of ours, with the schedule of its preset scaled to the time; leaves the tasks for the others in ``place``.

    How good it was before the first step is told: kernels that are placed by evidence may be all but done by then.
    """
    source = open_tasks(config.task, config.data, quiet=True)
    tasks = source.held_out("val", RACE_TASKS, config.episode, stream(0, "validation"))
    if isinstance(source, ClassTasks):
        bank = source.banks["train"]
        rows = bank.starts[:, None] + torch.arange(int(bank.counts.min()))
        looked = tasks.looked_up()
        write_bytes(place / "train.bytes", {"bank": bank.inputs[rows.flatten()].unflatten(0, rows.shape)})
        parts = {"support_x": looked.support_x, "query_x": looked.query_x}
    else:
        looked = tasks
        parts = {"support_x": tasks.support_x, "query_x": tasks.query_x}
    targets = {"support_y": looked.support_y, "query_y": looked.query_y}
    if not isinstance(source, ClassTasks):
        targets = {name: values.squeeze(-1) for name, values in targets.items() if values is not None}
    name = "tasks.bytes" if isinstance(source, ClassTasks) else "curves.bytes"
    write_bytes(place / name, {**parts, **{key: value for key, value in targets.items() if value is not None}})
    config = config.with_options(iterations=steps_within(seconds, config, source))
    began = time.perf_counter()
    trainer = make_trainer(config, source)  # places the kernels by the evidence of training tasks, which counts
    spent = time.perf_counter() - began
    name = "accuracy" if isinstance(source, ClassTasks) else "mse"
    before = measure_learner(trainer.learner, tasks)[name].mean().item()
    while spent < seconds and trainer.at.step < trainer.config.training.iterations:
        spent += timed(trainer.train_step)
    note = f"{trainer.at.step:,} steps; {before:.3g} before the first"
    return measure_learner(trainer.learner, tasks)[name].mean().item(), note


def write_bytes(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors as plain bytes, with their types and shapes beside: a peer need have nothing but torch to read them."""
    about, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = str(tensor.dtype).removeprefix("torch.")
        about[name] = (kind, list(tensor.shape), len(data), len(data) + len(raw))
        data += raw
    file.write_bytes(data)
    file.with_suffix(".json").write_text(json.dumps(about))


def peer_aims(sections: Sequence[Section]) -> list[Aim]:
    """MetaVRF's step against the peers' prototypical one, and evaluation."""
    result = []
    for section in sections:
        aim = {"step": 1.5, "evaluation": 8.0}.get(section.key)
        rows = [row for row in section.rows if "prototypical" in row.name and not row.name.startswith("metavrf")]
        what = f"{section.key}: MetaVRF's speed, of that of"
        if aim:
            result += [Aim(f"{what} {row.name}", section.ratio(row.name)[1], aim, at_least=True) for row in rows]
    return result


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    try:
        check_picture(options.chart)
        known = {peer.name: peer for peer in PEERS}
        if strange := [name for name in options.only if name not in KINDS]:
            raise UserError(f"there is no kind of work {strange[0]!r}: choose from {', '.join(KINDS)}")
        if unknown := [name for name in options.peers if name not in known]:
            raise UserError(f"there is no peer {unknown[0]!r}: choose from {', '.join(known)}")
        results = measure(options, [known[name] for name in options.peers])
        show(results, markdown=options.markdown)
        if options.chart:
            from speed.charts import plot_times

            plot_times(results.sections, options.chart, "median and quartiles of each")
        report(results.to_dict(), None, options.save, 0)
    except UserError as error:
        sys.exit(f"metavrf: {error}")


if __name__ == "__main__":
    main()
