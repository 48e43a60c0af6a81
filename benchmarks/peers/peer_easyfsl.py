"""easyfsl's prototypical networks: a training step and an evaluation on the work that ours does."""

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
    conv4,
    drawn,
    in_race,
    pictures,
    race,
    saved,
    serve_peer,
    tasks,
    torchvision_without_its_library,
    work,
)
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

torchvision_without_its_library()

from easyfsl.datasets import FewShotDataset  # noqa: E402
from easyfsl.methods import PrototypicalNetworks  # noqa: E402
from easyfsl.samplers import TaskSampler  # noqa: E402
from easyfsl.utils import evaluate  # noqa: E402

WORK = work()


class Pictures(FewShotDataset):  # type: ignore[misc]
    """Pictures in memory, in the interface that its sampler asks for."""

    def __init__(self, bank: Tensor) -> None:
        self.images = bank.flatten(0, 1)
        self.labels = torch.arange(len(bank)).repeat_interleave(bank.shape[1]).tolist()

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        return self.images[item], self.labels[item]

    def __len__(self) -> int:
        return len(self.labels)

    def get_labels(self) -> list[int]:
        """Class of each picture."""
        return self.labels


class OlderSampler(Sampler[list[int]]):
    """Takes the argument that torch's sampler no longer takes."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


class Adapted(TaskSampler, OlderSampler):  # type: ignore[misc]
    """Its sampler, which hands that argument on."""


def prototypical_step() -> Callable[[], object]:
    model = PrototypicalNetworks(conv4(WORK)).train()
    optimizer = torch.optim.Adam(model.parameters())
    source = tasks(WORK, pictures(WORK, WORK.train_classes))

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(WORK.tasks):
            support, support_y, query, query_y = next(source)
            model.process_support_set(support, support_y)
            (F.cross_entropy(model(query), query_y) / WORK.tasks).backward()
        optimizer.step()

    return step


def prototypical_evaluation() -> Callable[[], object]:
    model = PrototypicalNetworks(conv4(WORK))
    dataset = Pictures(pictures(WORK, WORK.train_classes))
    sampler = Adapted(dataset, WORK.way, WORK.shot, WORK.query, WORK.peer_episodes)
    loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)
    return lambda: evaluate(model, loader, device="cpu", use_tqdm=False)


def prototypical_adaptation() -> Callable[[], object]:
    model = PrototypicalNetworks(conv4(WORK)).eval()
    support, support_y, query, _ = next(tasks(WORK, pictures(WORK, WORK.train_classes)))

    @torch.no_grad()
    def adapt() -> Tensor:
        model.process_support_set(support, support_y)
        found: Tensor = model(query)
        return found

    return adapt


def raced(folder: Path, seconds: float) -> dict[str, Any]:
    """Accuracy after that long, trained on the large tasks that our preset trains on."""
    bank, held_out = saved(folder / "train.bytes")["bank"], saved(folder / "tasks.bytes")
    torch.manual_seed(0)
    model = PrototypicalNetworks(conv4(WORK)).train()
    optimizer = torch.optim.Adam(model.parameters())
    source = drawn(bank, min(WORK.hard_way, len(bank)), 1, WORK.hard_query)

    def step() -> None:
        support, support_y, query, query_y = next(source)
        optimizer.zero_grad()
        model.process_support_set(support, support_y)
        F.cross_entropy(model(query), query_y).backward()
        optimizer.step()

    @torch.no_grad()
    def figure() -> float:
        model.eval()
        right = []
        for support, support_y, query, query_y in zip(*(held_out[name] for name in PARTS), strict=True):
            model.process_support_set(support.float() / 255, support_y)
            right.append((model(query.float() / 255).argmax(-1) == query_y).float().mean())
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
        }
        serve_peer(pieces, f"easyfsl {version('easyfsl')}")
