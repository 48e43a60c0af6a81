"""Training on a bank that is larger than the memory it may use.

    python benchmarks/large_bank.py [--gigabytes 20] [--limit 2] [--steps 20] [--save results/large-bank.json]

A made-up bank of colour pictures of 84 x 84 is written as the cache of decoded pictures writes it, most of it as holes
of a sparse file, summed up, opened with its sum compared, and trained on with rotations as classes. All that happens
under a limit of the system (RLIMIT_DATA) of so many gigabytes beyond what the program has with torch and the package
imported: a copy of the bank, or a private map of it, is refused. What is reported is anonymous memory (RssAnon):
pages of a mapped file are the system's to drop and to read again, and count for nobody.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from metavrf.files import map_tensors, write_json, write_rows
from metavrf.reports import print_table
from metavrf.runs.provenance import hardware, provenance
from metavrf.spec import TaskSpec
from metavrf.tasks.bank import Bank
from metavrf.tasks.source import ClassTasks
from metavrf.tasks.splits import PARTS
from speed.step import make_trainer, step_config
from speed.work import Work

SHAPE, SAMPLES, DRAWN = (3, 84, 84), 600, 20  # of a picture; pictures of a class; how many of them are no holes
_GIB = 1 << 30


def memory(name: str) -> int:
    """Bytes of this process as the system counts them: RssAnon, RssFile or VmData."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


class Peak(threading.Thread):
    """Looks at the memory a hundred times a second: anonymous, and pages of files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.mapped, self.done = memory("RssAnon"), memory("RssFile"), threading.Event()
        self.start()

    def run(self) -> None:
        """Until it is done."""
        while not self.done.wait(0.01):
            self.bytes = max(self.bytes, memory("RssAnon"))
            self.mapped = max(self.mapped, memory("RssFile"))


def write_bank(file: Path, gigabytes: float) -> None:
    """Classes of random pictures, so many that they take that much."""
    size = SHAPE[0] * SHAPE[1] * SHAPE[2]
    classes = max(20, round(gigabytes * _GIB / (SAMPLES * size)))
    counts = torch.full((classes,), SAMPLES)
    others = {"starts": counts.cumsum(0) - counts, "counts": counts}
    names = {"names": [f"{number}" for number in range(classes)]}
    shape, generator = (classes * SAMPLES, *SHAPE), torch.Generator().manual_seed(0)
    with write_rows(file, "inputs", torch.uint8, shape, tensors=others, metadata=names) as writer:
        for first in others["starts"].tolist():
            writer.put(first, torch.randint(256, (DRAWN, *SHAPE), dtype=torch.uint8, generator=generator))


def train(file: Path, steps: int, channels: int) -> list[float]:
    """Losses of some steps on the bank in that file."""
    tensors, metadata = map_tensors(file, "inputs")
    bank = Bank(tensors["inputs"], tensors["starts"], tensors["counts"], metadata["names"])
    spec = TaskSpec(SHAPE, None, "none")
    tasks = ClassTasks(bank, {part: list(bank.names) for part in PARTS}, spec, rotate=True)
    trainer = make_trainer(step_config(Work(tasks=2, query=5, channels=channels, bases=256)), tasks)
    return [float(trainer.train_step()["loss"]) for _ in range(steps)]


def measure(folder: Path, gigabytes: float, limit: float, steps: int, channels: int) -> dict[str, Any]:
    """Write, sum up, open, train; what it took."""
    before, data = memory("RssAnon"), memory("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (data + round(limit * _GIB), resource.RLIM_INFINITY))
    peak, file, start = Peak(), folder / "bank.safetensors", time.process_time()
    write_bank(file, gigabytes)
    written = time.process_time()
    losses = train(file, steps, channels)
    peak.done.set()
    return {
        "bank_gigabytes": file.stat().st_size / _GIB,
        "limit_gigabytes": limit,
        "anonymous_before_gigabytes": before / _GIB,
        "anonymous_beyond_gigabytes": (peak.bytes - before) / _GIB,
        "most_file_pages_gigabytes": peak.mapped / _GIB,
        "steps": steps,
        "finite": all(torch.isfinite(torch.tensor(losses)).tolist()),
        "write_cpu_seconds": written - start,
        "open_and_train_cpu_seconds": time.process_time() - written,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--limit", type=float, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="where the bank is written for the time being")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.gigabytes, options.limit, options.steps, options.channels)
    print_table(["what", "value"], [[name.replace("_", " "), f"{value:.4g}"] for name, value in found.items()])
    if options.save:
        write_json(options.save, found | {"hardware": hardware(), "provenance": provenance(0)})


if __name__ == "__main__":
    main()
