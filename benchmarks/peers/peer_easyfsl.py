"""easyfsl's prototypical networks: a training step and an evaluation on the work that ours does."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from common import conv4, pictures, serve_peer, tasks, torchvision_without_its_library, work
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


if __name__ == "__main__":
    serve_peer(
        {"prototypical step": prototypical_step, "prototypical evaluation": prototypical_evaluation},
        f"easyfsl {version('easyfsl')}",
    )
