"""Our step and evaluation beside those of other packages, each in an environment of its own, by turns in one run.

    python benchmarks/peers/measure.py [--rounds 11] [--save FILE] [--markdown] [--quick]

Every peer runs under the C library's default allocator and under our settings of it, else one would only be measuring
malloc. One that does not install or does not run is reported so, and left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import show, watch
from metavrf.errors import UserError
from metavrf.memory import allocator_variables
from metavrf.reports import check_picture, report
from speed.measure import DEFAULT, OURS, Bench, machine, variables
from speed.results import Aim, Results, Row, Section
from speed.turns import Turn, Worker, take_turns
from speed.work import Work

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONSTRAINTS = ROOT / "constraints.txt"


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
        source = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), str(ROOT / "src")])}
        return Worker(self.name, command, variables(allocator, threads) | settings | source)


PEERS = (
    Peer("gpytorch", (("gpytorch",),), {}, {}, {"GPyTorch, deep kernel": "deep kernel step"}),
    Peer(
        "easyfsl",
        (("easyfsl==1.5.0",),),
        {"easyfsl, prototypical": "prototypical step"},
        {"easyfsl, prototypical": "prototypical evaluation"},
        {},
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
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)
    """Which to measure."""
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
    turns: dict[str, list[Turn]] = {"step": [], "evaluation": [], "sine": []}
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
                f"metavrf, {work.kernels} kernels, exact": "sine many",
                "metavrf, one kernel by random features, biLSTM": "sine bilstm",
            }
            turns["sine"] += [Turn(label(name), worker, piece, work.calls) for name, piece in sine.items()]
        for peer in peers:
            try:
                watch(f"installing {peer.name}", 0, 1)
                peer.install(options.environments)
                for allocator in (DEFAULT, OURS):
                    worker = stack.enter_context(peer.worker(options.environments, work, allocator, options.threads))
                    machine_facts[peer.name] = worker.facts["version"]
                    label = _labels(allocator)
                    for kind, pieces in {"step": peer.step, "evaluation": peer.evaluation, "sine": peer.sine}.items():
                        for name, piece in pieces.items():
                            worker.turn(piece)  # what does not run is found out before the rounds
                            calls = work.calls if kind == "sine" else 1
                            turns[kind].append(Turn(label(name), worker, piece, calls))
            except UserError as error:
                skipped.append(f"{peer.name}: {error}")
                gone = [name for pieces in (peer.step, peer.evaluation, peer.sine) for name in pieces]
                turns = {
                    kind: [turn for turn in members if not turn.label.startswith(tuple(gone))]
                    for kind, members in turns.items()
                }
        sections = [_section(kind, members, work, options.rounds) for kind, members in turns.items() if members]
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
        "sine": f"Sine: a training step of {work.sine_tasks} tasks of {work.sine_shot} and {work.sine_query} points",
    }
    notes = {
        "evaluation": [
            f"Ours is the mean of {work.episodes} episodes whose images are embedded once; peers embed each anew."
        ]
    }
    rows = []
    for turn in turns:
        each = 1
        if kind == "evaluation":
            each = work.episodes if turn.label.startswith("metavrf") else work.peer_episodes
        rows.append(Row(turn.label, [1e3 * value / each for value in seconds[turn.label]]))
    return Section(kind, titles[kind], "ms", rows, turns[0].label, notes=notes.get(kind, []))


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
