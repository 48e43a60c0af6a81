"""Does a learner infer anything of a task? The same tasks answered with their own, the mean and another's inference.

Where the three are level, what the learner calls inference is a constant, and all it gained it learned beforehand.
"""

from __future__ import annotations

from typing import Any

import torch

from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.learners.base import Learner
from metavrf.learners.measuring import Tasks, figures, grouped, joined, prepared
from metavrf.prediction import Prediction
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.testing.evaluation import difference


@torch.no_grad()
def adaptivity(
    learner: Learner, episodes: Tasks, batch: int | None = None, protocol: Protocol = INDUCTIVE
) -> dict[str, Any]:
    """Figures of the tasks answered with their ``own``, the ``mean`` and an ``other`` task's inference.

    Of mean and other also the paired differences to own, ``difference`` of the metric and ``nll_difference``. Where
    kernels are weighted, ``entropy`` says how uncertain the weights are before and after the support is seen, in nats.
    """
    if any(group.stream > 1 for group in grouped(episodes)):
        raise UserError("the adaptivity test is for tasks that stand alone: leave out --stream")
    features = [_on_features(learner, group, batch, protocol) for group in grouped(episodes)]
    parts = [(chunk, learner.inferred(chunk)) for group in features for chunk in group]
    if parts[0][1] is None:
        return {"inferred": None}
    whole = type(parts[0][1]).joined([inference for _, inference in parts])
    chosen = {"own": whole, "mean": whole.mean(), "other": whole.other()}
    measured: dict[str, Any] = {}
    for name, inference in chosen.items():
        answers, start = [], 0
        for chunk, _ in parts:
            found = learner.answer(chunk, inference.at(slice(start, start + chunk.tasks)))
            answers.append(figures(chunk, calibrated(learner, chunk, found)))
            start += chunk.tasks
        measured[name] = joined(answers)
    metric = next(iter(measured["own"]))
    result: dict[str, Any] = {"metric": metric}
    for name, values in measured.items():
        result[name] = {metric: values[metric].double().mean().item(), "nll": values["nll"].double().mean().item()}
        if name != "own":
            for key, label in ((metric, "difference"), ("nll", "nll_difference")):
                gap = difference(values[key].double() - measured["own"][key].double())
                result[name][label] = {"mean": gap.mean, "ci95": gap.ci95, "p_value": gap.p_value}
    entropy = whole.entropy()
    if entropy is not None:
        result["entropy"] = entropy
    return result


def calibrated(learner: Learner, episodes: Episodes, found: Prediction) -> Prediction:
    """As :meth:`Learner.predict` gives it: logits divided by the temperature."""
    if episodes.way is None:
        return found
    return Prediction(learner.calibrated(found.mean, episodes), found.samples)


def _on_features(learner: Learner, episodes: Episodes, batch: int | None, protocol: Protocol) -> list[Episodes]:
    """The tasks in batches whose inputs are features."""
    episodes, ready, batch = prepared(learner, episodes, batch, protocol=protocol)
    with learner.at_test_time():
        return [chunk.looked_up() if ready else learner.embedded(chunk, protocol) for chunk in episodes.batches(batch)]
