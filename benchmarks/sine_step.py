"""Where a training step on sine tasks spends its time: each part alone, forward and backward, beside the whole step.

    python benchmarks/sine_step.py [--context bilstm] [--repeats 60] [--save FILE]

Parts are timed in turn, round after round, so that noise hits all alike; medians and quartiles are printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from metavrf.config import preset
from metavrf.kernels.random_features import fourier_features
from metavrf.learners import build
from metavrf.learners.metavrf import MetaVRF
from metavrf.memory import keep_freed_memory
from metavrf.nn.inference import gaussian_kl
from metavrf.provenance import provenance
from metavrf.randomness import stream
from metavrf.reports import print_table
from metavrf.run import Run, write_json
from metavrf.tasks.source import open_tasks
from metavrf.training import Trainer, make_fabric


def backward(*outputs: Tensor) -> None:
    """Backward through the sum of the outputs."""
    torch.autograd.backward(list(outputs), [torch.ones_like(output) for output in outputs])


def parts(trainer: Trainer) -> dict[str, Callable[[], object]]:
    """The parts of a step as functions of ready inputs, each forward and backward."""
    learner = trainer.learner
    assert isinstance(learner, MetaVRF)
    episodes = trainer.tasks_of(0)
    features = episodes.embedded(learner.embedding).embedded(learner.rescale)
    features.support_x, features.query_x = (x.detach().requires_grad_() for x in (features.support_x, features.query_x))
    z = torch.cat([features.support_x, features.query_x], dim=1).detach().requires_grad_()
    mean, log_variance = (
        v.detach().requires_grad_() for v in learner.posterior(learner.context(learner.summary(features)))
    )
    std = torch.exp(0.5 * log_variance).detach().requires_grad_()
    sizes = [features.support_x.shape[1], features.query_x.shape[1]]
    draws = learner.draws(stream(0, "draws"))
    phi = fourier_features(z, mean, std, draws).detach().requires_grad_()

    def ridge() -> None:
        prediction = learner.head(*phi.split(sizes, dim=2), features)
        assert prediction.loss is not None
        backward(prediction.loss)

    def divergence() -> None:
        prior = learner.prior(features.query_x, features.prototypes(features.support_x))
        backward(gaussian_kl(mean.unsqueeze(1), log_variance.unsqueeze(1), *prior).mean())

    return {
        "whole step": trainer.train_step,
        "tasks": lambda: trainer.tasks_of(1),
        "embedding": lambda: backward(learner.rescale(learner.embedding(episodes.query_x))),
        "context and posterior": lambda: backward(*learner.posterior(learner.context(learner.summary(features)))),
        "drawing bases": lambda: learner.draws(stream(0, "draws", 1)),
        "random features": lambda: backward(fourier_features(z, mean, std, draws)),
        "ridge and likelihood": ridge,
        "prior and KL": divergence,
        "optimiser": trainer.optimizer.step,
    }


def measure(pieces: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each piece, round after round."""
    times: dict[str, list[float]] = {name: [] for name in pieces}
    for _ in range(repeats):
        for name, piece in pieces.items():
            start = time.perf_counter()
            piece()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", default="bilstm", choices=["none", "lstm", "bilstm"])
    parser.add_argument("--shot", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(arguments)
    keep_freed_memory()
    config = preset("sine").with_options(context=options.context, shot=options.shot)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config,
            Run(Path(folder) / "run"),
            make_fabric(config.training),
            open_tasks("sine", config.data),
            build(config),
            stopped=[],
            quiet=True,
        )
        for _ in range(20):
            trainer.train_step()
        pieces = parts(trainer)
        measure(pieces, 5)
        times = measure(pieces, options.repeats)
    whole = statistics.median(times["whole step"])
    rows = {name: statistics.quantiles(values, n=4) for name, values in times.items()}
    lines = [
        [name, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{100 * median / whole:.0f} %"]
        for name, (low, median, high) in rows.items()
    ]
    title = (
        f"sine, {config.episode.batch} tasks of {options.shot} shots, context {options.context}, "
        f"D = {config.model.bases}, {torch.get_num_threads()} threads"
    )
    print_table(["part, forward and backward", "ms", "quartiles", "of the step"], lines, title)
    if options.save:
        write_json(options.save, {"milliseconds_quartiles": rows, "provenance": provenance(config.training.seed)})


if __name__ == "__main__":
    main()
