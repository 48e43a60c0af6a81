"""The shipped model 'photos' beside two plain classifiers on the same features and the same CIFAR-FS test episodes.

    metavrf embed cifar-fs --out cifar-fs-lite0.safetensors
    python benchmarks/photos.py [--episodes 3000] [--data FILE] [--save FILE]

Nearest class mean and scikit-learn's logistic regression see EfficientNet-Lite0 features centred and scaled by the
training classes, then of length 1. C, and the temperature that calibrates each, are chosen on validation classes and
for each shot; the model has one temperature for all shots.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import metavrf
from metavrf.episodes import Episodes
from metavrf.files import write_json
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.head import of_logits
from metavrf.learners.measuring import calibrate
from metavrf.learners.prototypical import Prototypical
from metavrf.randomness import stream
from metavrf.reports import print_rows, row_dict
from metavrf.runs.directory import Run
from metavrf.runs.provenance import provenance
from metavrf.spec import TaskSpec
from metavrf.tasks.source import ClassTasks, open_tasks
from metavrf.testing.compare import Row
from metavrf.testing.evaluation import evaluate_learner, paired_differences
from metavrf.testing.settings import TEST_SEED

MODEL = "photos"
CHOICES = (0.1, 1.0, 10.0, 100.0)
VALIDATION_TASKS = 200


class Standardised(nn.Module):
    """Features centred and scaled by the training classes' statistics, then of length 1."""

    def __init__(self, training: Tensor) -> None:
        super().__init__()
        self.deviation, self.mean = torch.std_mean(training, 0)

    def forward(self, x: Tensor, own: int | None = None, views: str = "one") -> Tensor:
        """Features ``[..., d]``."""
        return F.normalize((x - self.mean) / self.deviation, dim=-1)


class Logistic(Learner):
    """scikit-learn's logistic regression, fitted to each task.

    Its weights lie in the span of the support features, as the penalty is their length: it is fitted in coordinates of
    that span, which changes nothing but the time.
    """

    def __init__(self, embedding: nn.Module, spec: TaskSpec, c: float) -> None:
        super().__init__(embedding, spec)
        self.c = c

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        """One fit a task."""
        tasks = zip(episodes.support_x, episodes.support_y, episodes.query_x, strict=True)
        logits = torch.stack([torch.from_numpy(self._answer(*task)) for task in tasks]).float()
        return of_logits(logits.unsqueeze(0), episodes)

    def _answer(self, support: Tensor, labels: Tensor, query: Tensor) -> NDArray[np.float64]:
        span = torch.linalg.qr(support.mT).Q
        model = LogisticRegression(C=self.c, max_iter=1000).fit((support @ span).numpy(), labels.numpy())
        return model.predict_log_proba((query @ span).numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=3000)
    parser.add_argument("--data", default="")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    run = Run.open(MODEL)
    config, known = run.config(), run.spec()
    source = open_tasks(config.task, replace(config.data, data=options.data), trained_on=known)
    assert isinstance(source, ClassTasks)
    features = Standardised(source.banks["train"].compact().inputs[:])
    saved: dict[str, object] = {"pretraining": known.pretraining, "features": known.embedder}
    for shot in (1, 5):
        shape = replace(config.episode, shot=shot)
        validation = source.held_out("val", VALIDATION_TASKS, shape, stream(config.training.seed, "validation"))
        nearest = Prototypical(features, known)  # untrained: the nearest class mean (SimpleShot, Wang et al. 2019)
        calibrate(nearest, validation)
        fits = {c: Logistic(features, known, c) for c in CHOICES}
        accuracies = {c: calibrate(fit, validation)["accuracy"].mean().item() for c, fit in fits.items()}
        best = max(accuracies, key=lambda c: accuracies[c])
        learners: dict[str, Learner] = {
            MODEL: metavrf.load(MODEL).learner,
            "nearest class mean": nearest,
            f"logistic regression, C = {best:g}": fits[best],
        }
        test = source.held_out("test", options.episodes, shape, stream(TEST_SEED, "test"))
        results = [evaluate_learner(learner, test, TEST_SEED, split=known.split) for learner in learners.values()]
        differences = paired_differences(results)
        rows = [Row(*line) for line in zip(learners, results, differences, strict=True)]
        print_rows(rows)
        saved[f"{shot} shot"] = {"validation_accuracy_by_c": accuracies, "rows": [row_dict(row) for row in rows]}
    if options.save:
        write_json(options.save, saved | {"provenance": provenance(TEST_SEED)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
