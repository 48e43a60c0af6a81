"""learn2learn's prototypical classifier and MAML: a training step and an evaluation on the work that ours does."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import (
    PARTS,
    Task,
    conv4,
    drawn,
    features,
    in_race,
    pictures,
    race,
    saved,
    serve_peer,
    tasks,
    torchvision_without_its_library,
    work,
)
from torch import Tensor, nn

torchvision_without_its_library()

import learn2learn  # noqa: E402

WORK = work()
INNER_LR = 0.4


def prototypical_logits(network: nn.Module, task: Task) -> Tensor:
    support, support_y, query, _ = task
    z = network(torch.cat([support, query]))
    classifier = learn2learn.nn.PrototypicalClassifier(z[: len(support)], support_y)
    answer: Tensor = classifier(z[len(support) :])
    return answer


def prototypical_step() -> Callable[[], object]:
    network = conv4(WORK).train()
    optimizer = torch.optim.Adam(network.parameters())
    source = tasks(WORK, pictures(WORK, WORK.train_classes))

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(WORK.tasks):
            task = next(source)
            (F.cross_entropy(prototypical_logits(network, task), task[3]) / WORK.tasks).backward()
        optimizer.step()

    return step


def prototypical_evaluation() -> Callable[[], object]:
    network = conv4(WORK).eval()
    source = tasks(WORK, pictures(WORK, WORK.train_classes))

    @torch.no_grad()
    def evaluate() -> None:
        for _ in range(WORK.peer_episodes):
            task = next(source)
            (prototypical_logits(network, task).argmax(-1) == task[3]).float().mean().item()

    return evaluate


def classifier() -> nn.Module:
    return nn.Sequential(conv4(WORK), nn.Linear(features(WORK), WORK.way))


def adapted_logits(maml: nn.Module, task: Task) -> Tensor:
    """After one gradient step on the support."""
    support, support_y, query, _ = task
    learner = maml.clone()  # type: ignore[operator]
    learner.adapt(F.cross_entropy(learner(support), support_y))
    answer: Tensor = learner(query)
    return answer


def maml_step() -> Callable[[], object]:
    maml = learn2learn.algorithms.MAML(classifier(), lr=INNER_LR, first_order=False)
    optimizer = torch.optim.Adam(maml.parameters())
    source = tasks(WORK, pictures(WORK, WORK.train_classes))

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(WORK.tasks):
            task = next(source)
            (F.cross_entropy(adapted_logits(maml, task), task[3]) / WORK.tasks).backward()
        optimizer.step()

    return step


def maml_evaluation() -> Callable[[], object]:
    maml = learn2learn.algorithms.MAML(classifier(), lr=INNER_LR, first_order=True)
    source = tasks(WORK, pictures(WORK, WORK.train_classes))

    def evaluate() -> None:
        for _ in range(WORK.peer_episodes):
            task = next(source)
            (adapted_logits(maml, task).argmax(-1) == task[3]).float().mean().item()

    return evaluate


def prototypical_adaptation() -> Callable[[], object]:
    network = conv4(WORK).eval()
    task = next(tasks(WORK, pictures(WORK, WORK.train_classes)))
    return torch.no_grad()(lambda: prototypical_logits(network, task))


def maml_adaptation() -> Callable[[], object]:
    maml = learn2learn.algorithms.MAML(classifier(), lr=INNER_LR, first_order=True)
    task = next(tasks(WORK, pictures(WORK, WORK.train_classes)))
    return lambda: adapted_logits(maml, task)


def raced(folder: Path, seconds: float) -> dict[str, Any]:
    """Accuracy after that long, trained on the large tasks that our preset trains on."""
    bank, held_out = saved(folder / "train.bytes")["bank"], saved(folder / "tasks.bytes")
    torch.manual_seed(0)
    network = conv4(WORK).train()
    optimizer = torch.optim.Adam(network.parameters())
    source = drawn(bank, min(WORK.hard_way, len(bank)), 1, WORK.hard_query)

    def step() -> None:
        task = next(source)
        optimizer.zero_grad()
        F.cross_entropy(prototypical_logits(network, task), task[3]).backward()
        optimizer.step()

    @torch.no_grad()
    def figure() -> float:
        network.eval()
        right = []
        for support, support_y, query, query_y in zip(*(held_out[name] for name in PARTS), strict=True):
            logits = prototypical_logits(network, (support.float() / 255, support_y, query.float() / 255, query_y))
            right.append((logits.argmax(-1) == query_y).float().mean())
        return 100 * float(torch.stack(right).mean())

    return race(step, figure, seconds)


if __name__ == "__main__":
    asked = in_race()
    if asked:
        print(json.dumps(raced(*asked[1:])))
    else:
        pieces = {
            "prototypical step": prototypical_step,
            "prototypical evaluation": prototypical_evaluation,
            "prototypical adaptation": prototypical_adaptation,
            "maml step": maml_step,
            "maml evaluation": maml_evaluation,
            "maml adaptation": maml_adaptation,
        }
        serve_peer(pieces, f"learn2learn {version('learn2learn')}")
