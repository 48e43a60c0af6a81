"""The sections of the benchmark: which pieces take turns, and what their times are set beside."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from speed.quoted import AUTHORS_EPISODES, AUTHORS_STEP
from speed.results import Aim, Results, Row, Section
from speed.turns import Turn, Worker, take_turns, timed
from speed.work import CONTEXTS, GRADIENTS, ON_SINE, SINE_PARTS, Work

WORKER = Path(__file__).resolve().parents[1] / "worker.py"
OURS, DEFAULT = "ours", "default"
SectionName = Literal["step", "evaluation", "adaptation", "sine", "gradients", "start", "memory"]
SECTIONS: tuple[SectionName, ...] = get_args(SectionName)
STEP = "our step"
COMMON = "as commonly written"
EMBEDDING = "our embedding"
LEVER_NAMES = {
    "channels_last": "channels last",
    "relu_last": "ReLU after pooling",
    "bytes": "bytes until the embedding",
    "batched": "tasks solved at once",
    "implicit": "bases never formed",
    "fused": "fused optimiser",
    "chunks": "a chunk a task*",
}
CHUNKS = (
    "* In training, a chunk is normalised by its own images: another function than one batch, so it is shown and not "
    "used. All other levers compute the same."
)
EVALUATIONS = 3
MEMORY_STEPS = 3
GB = 1e9

Watch = Callable[[str, int, int], None]


def variables(allocator: str, threads: int = 0) -> dict[str, str]:
    """The environment of a worker under the allocator's settings "ours" or "default"."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "METAVRF_ALLOCATOR"))}
    if allocator == DEFAULT:
        kept["METAVRF_ALLOCATOR"] = "default"
    return kept | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


class Bench:
    """One run of the benchmark: two workers that differ in the allocator's settings only, and what they measure."""

    def __init__(self, work: Work, rounds: int, threads: int, watch: Watch) -> None:
        self.work, self.rounds, self.threads, self.watch = work, rounds, threads, watch
        self.skipped: list[str] = []

    def run(self, wanted: Sequence[str]) -> Results:
        """Measure the wanted sections."""
        sections: list[Section] = []
        facts: dict[str, Any] = {}
        with ExitStack() as stack:
            workers = {name: stack.enter_context(self.worker(name)) for name in (OURS, DEFAULT)}
            facts = {name: worker.facts for name, worker in workers.items()}
            measures: dict[str, Callable[[Mapping[str, Worker]], list[Section]]] = {
                "step": self.step,
                "evaluation": self.evaluation,
                "adaptation": self.adaptation,
                "sine": self.sine,
                "gradients": self.gradients,
            }
            for name, measure in measures.items():
                if name in wanted:
                    sections += measure(workers)
        if "start" in wanted:
            sections.append(self.start(bank=facts[OURS]["omniglot"]))
        if "memory" in wanted:
            sections.append(self.memory())
        return Results(sections, aims(sections, self.work), machine(facts), self.skipped)

    @contextmanager
    def worker(self, allocator: str) -> Iterator[Worker]:
        """A fresh process that holds all pieces."""
        command = [sys.executable, str(WORKER), self.work.to_json()]
        with Worker(allocator, command, variables(allocator, self.threads)) as worker:
            yield worker

    def turns(self, section: str, turns: Sequence[Turn], rounds: int | None = None) -> dict[str, list[float]]:
        """Seconds by label."""
        rounds = self.rounds if rounds is None else rounds
        return take_turns(turns, rounds, lambda done: self.watch(section, done, rounds))

    def step(self, workers: Mapping[str, Worker]) -> list[Section]:
        """The training step, the embedding's variants and the levers, all in the same rounds."""
        ours, default = workers[OURS], workers[DEFAULT]
        lever_turns = {COMMON: ("common", default), "our allocator settings": ("common", ours)}
        for key, name in LEVER_NAMES.items():
            lever_turns[name] = (f"common {key}", default)
        together = {"all of them but chunks": ("common all", ours)}
        for key, name in LEVER_NAMES.items():
            if key != "chunks":
                together[f"all but {name}"] = (f"common without {key}", ours)
        together["all but our allocator settings"] = ("common all", default)
        together["all of them and chunks*"] = ("common all chunks", ours)
        variants = {
            f"{name}, {'our' if worker is ours else 'default'} allocator": (piece, worker)
            for name, piece in {
                "NCHW, one batch": "nchw",
                "channels last, one batch": "channels last",
                f"channels last, {self.work.tasks} chunks*": "chunks",
            }.items()
            for worker in (default, ours)
        }
        parts = {
            STEP: ("step", ours),
            "our step, with the preset's dropout and augmentation": ("step as trained", ours),
            EMBEDDING: ("embedding", ours),
            "convolutions alone": ("convolutions", ours),
            "the arithmetic at GEMM speed": ("arithmetic", ours),
        }
        everything = parts | lever_turns | variants | together
        seconds = self.turns("step", [Turn(label, worker, piece) for label, (piece, worker) in everything.items()])
        milliseconds = {label: [1e3 * value for value in values] for label, values in seconds.items()}

        def rows(*labels: str) -> list[Row]:
            return [Row(label, milliseconds[label]) for label in labels]

        flops = self.work.convolution_flops()
        speed = flops / min(seconds["the arithmetic at GEMM speed"]) / 1e9
        common = {f"the step {COMMON}, default allocator": COMMON}
        return [
            Section(
                "step",
                f"A training step: {self.work.label}, MetaVRF, biLSTM, D = {self.work.bases}",
                "ms",
                [*rows(*parts), *(Row(name, milliseconds[label]) for name, label in common.items())],
                STEP,
                notes=[
                    f"The convolutions' forward and backward passes are {flops / 1e9:.3g} GFLOP; the fastest matrix "
                    f"product of that size ran at {speed:.3g} GFLOP/s. The authors' code takes "
                    f"{1e3 * AUTHORS_STEP:.0f} ms (quoted)."
                ],
            ),
            Section(
                "embedding",
                "The embedding alone, forward and backward",
                "ms",
                rows(EMBEDDING, *variants),
                EMBEDDING,
                notes=[CHUNKS],
            ),
            Section(
                "levers",
                "What each lever gives to the step, alone and together",
                "ms",
                rows(*lever_turns, *together, STEP),
                COMMON,
                speed_up=True,
                notes=[
                    "Each lever alone is pulled on the step as commonly written, under the default allocator. "
                    "The last row is the training loop's own step, with all of its bookkeeping."
                ],
            ),
        ]

    def evaluation(self, workers: Mapping[str, Worker]) -> list[Section]:
        """Thousands of episodes, by our evaluation."""
        labels = {"our allocator settings": OURS, "default allocator": DEFAULT}
        turns = [Turn(label, workers[name], "evaluation", warm=False) for label, name in labels.items()]
        seconds = self.turns("evaluation", turns, min(EVALUATIONS, self.rounds))
        work = self.work
        real = work.real and workers[OURS].facts["omniglot"]
        bank = "Omniglot's test classes" if real else f"{work.test_classes} classes of random pictures"
        rows = [
            Row(label, values, f"{work.episodes / sorted(values)[len(values) // 2]:.0f} episodes a second")
            for label, values in seconds.items()
        ]
        title = (
            f"Evaluation, inductive: {work.episodes} episodes of {work.way}-way {work.shot}-shot, {work.query} queries"
        )
        note = (
            f"On {bank}: drawing the episodes, embedding each image once, solving, the figures of a result. "
            f"The authors' code: {AUTHORS_EPISODES:.0f} episodes a second (quoted)."
        )
        return [Section("evaluation", title, "s", rows, notes=[note])]

    def adaptation(self, workers: Mapping[str, Worker]) -> list[Section]:
        """One task on ready features."""
        turns = [Turn("MetaVRF", workers[OURS], "adaptation", self.work.calls)]
        if find_spec("sklearn"):
            turns.append(Turn("scikit-learn's KernelRidge", workers[OURS], "kernel ridge", self.work.calls))
        else:
            self.skipped.append("scikit-learn's KernelRidge, for scikit-learn is not installed")
        seconds = self.turns("adaptation", turns)
        work = self.work
        title = (
            f"Adaptation: fit and predict of one {work.way}-way {work.ready_shot}-shot task on ready features, "
            f"{work.way * work.query} queries, d = {work.ready}, D = {work.bases}"
        )
        return [Section("adaptation", title, "ms", _milliseconds(seconds), "MetaVRF")]

    def sine(self, workers: Mapping[str, Worker]) -> list[Section]:
        """A step on sine tasks, and its parts."""
        from metavrf.config import Config

        ours = workers[OURS]
        contexts = {f"whole step, context {context}": f"sine {context}" for context in CONTEXTS}
        exact = {
            "whole step, one kernel, exact": "sine exact",
            "whole step, one kernel, exact, no KL": "sine exact, no KL",
            f"whole step, {self.work.kernels} kernels, exact": "sine many",
        }
        parts = {part: f"sine: {part}" for part in SINE_PARTS}
        turns = [Turn(label, ours, piece, self.work.calls) for label, piece in (contexts | exact | parts).items()]
        seconds = self.turns("sine", turns)
        work, drawn = self.work, Config.of("sine").model.train_bases
        title = (
            f"Sine: a step of {work.sine_tasks} tasks, {work.sine_shot} shots, {work.sine_query} queries, "
            f"D = {work.bases}, of which a training step draws {min(drawn, work.bases)}; the parts, forward and "
            "backward, are those of context bilstm"
        )
        note = (
            "Sine: rows with a context are one kernel by random features, as in the paper. Exact ones have no context "
            f"(one kernel), or are the preset's own step with {work.kernels} kernels."
        )
        return [Section("sine", title, "ms", _milliseconds(seconds), list(contexts)[-1], notes=[note])]

    def gradients(self, workers: Mapping[str, Worker]) -> list[Section]:
        """Each gradient that is written by hand, beside the one that PyTorch derives."""
        work = self.work
        turns = [
            Turn(f"{name}, {how}", workers[OURS], f"gradient: {name}, {how}", calls)
            for name in GRADIENTS
            for calls in [work.calls if name.endswith(ON_SINE) else max(1, work.calls // 4)]
            for how in ("derived", "by hand")
        ]
        milliseconds = {row.name: row for row in _milliseconds(self.turns("gradients", turns))}
        rows = []
        for name in GRADIENTS:
            derived, by_hand = (milliseconds[f"{name}, {how}"] for how in ("derived", "by hand"))
            rows += [replace(row, reference=derived.name) for row in (derived, by_hand)]
        title = (
            "Hand-written gradients: forward and backward, beside the gradient that PyTorch derives, on the shapes of "
            f"a step of {work.sine_tasks} sine tasks with {work.kernels} exact kernels or one by random features, and "
            f"of one {work.hard_way}-way Omniglot task"
        )
        note = "The gradient of pooling is written by hand for memory, not for time: --only memory says what it saves."
        return [Section("gradients", title, "ms", rows, rows[0].name, speed_up=True, notes=[note])]

    def start(self, *, bank: bool) -> Section:
        """Fresh processes, by turns."""
        commands = {
            "python alone": ["-c", "pass"],
            "import metavrf": ["-c", "import metavrf"],
            "metavrf --help": ["-m", "metavrf", "--help"],
        }
        rows = {name: Row(name, []) for name in commands}
        cached = Row("Omniglot's bank from the cache", [], "imports not counted")
        for number in range(self.rounds):
            for name, arguments in commands.items():
                rows[name].values.append(timed(lambda arguments=arguments: _run(arguments)))  # type: ignore[misc]
            if bank:
                with self.worker(OURS) as worker:
                    cached.values.extend(worker.turn("bank", warm=False))
            self.watch("start", number + 1, self.rounds)
        if not bank:
            self.skipped.append("a bank from the cache, for Omniglot is not at hand")
        return Section("start", "Start, each in a fresh process", "s", [*rows.values(), *([cached] if bank else [])])

    def memory(self) -> Section:
        """The most that is resident during training steps on large tasks."""
        work = self.work
        variants = {
            "our allocator settings": (OURS, "many"),
            "default allocator": (DEFAULT, "many"),
            "our allocator settings, with the gradient of pooling derived": (OURS, "many, pooling derived"),
        }
        rows = []
        for label, (allocator, piece) in variants.items():
            with self.worker(allocator) as worker:
                worker.turn(piece, MEMORY_STEPS)
                rows.append(Row(label, [worker.peak / GB]))
            self.watch("memory", len(rows), len(variants))
        images = work.tasks * work.many_way * (work.many_shot + work.query)
        title = (
            f"Memory: most that is resident after {MEMORY_STEPS + 1} steps of {work.tasks} tasks of "
            f"{work.many_way}-way {work.many_shot}-shot, {images} images a step"
        )
        return Section("memory", title, "GB", rows)


def _milliseconds(seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    return [Row(label, [1e3 * value for value in values]) for label, values in seconds.items()]


def _run(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)


def machine(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What it was measured on."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cpus": os.cpu_count(),
        "threads": facts[OURS]["threads"],
        "libc": " ".join(platform.libc_ver()),
        "our_allocator_settings_took_effect": facts[OURS]["keeps_freed_memory"],
    }


def aims(sections: Sequence[Section], work: Work) -> list[Aim]:
    """What was to be reached, for what was measured."""
    found = {section.key: section for section in sections}
    result: list[Aim] = []
    if "step" in found:
        step, embedding = found["step"], found["embedding"]
        variants = [row.name for row in embedding.rows if row.name != EMBEDDING]
        best = min(variants, key=lambda name: embedding.row(name).median)
        result += [
            Aim("our step, of the embedding's own pass", step.ratio(STEP, EMBEDDING)[1], 1.10),
            Aim(f"our embedding, of the best variant ({best})", embedding.ratio(EMBEDDING, best)[1], 1.10),
        ]
    if "evaluation" in found:
        seconds = found["evaluation"].rows[0].median
        result += [
            Aim(f"{work.episodes} test episodes, s", seconds, 15.0),
            Aim("test episodes a second, of the authors' code", work.episodes / seconds / AUTHORS_EPISODES, 10.0, True),
        ]
    if "adaptation" in found:
        result.append(Aim("fit and predict of a task on ready features, ms", found["adaptation"].rows[0].median, 3.0))
    if "sine" in found:
        whole = [row for row in found["sine"].rows if row.name.startswith("whole")]
        result += [Aim(f"sine, {row.name}, ms", row.median, 3.0) for row in whole]
    if "start" in found:
        limits = {"metavrf --help": 0.4, "import metavrf": 0.3, "Omniglot's bank from the cache": 1.0}
        rows = [row for row in found["start"].rows if row.name in limits]
        result += [Aim(f"{row.name}, s", row.median, limits[row.name]) for row in rows]
    if "memory" in found:
        result.append(Aim("memory of large tasks, GB", found["memory"].rows[0].median, 3.0))
    return result
