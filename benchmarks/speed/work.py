"""The work that is measured: the same for every variant and every peer. Standard library only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

CONTEXTS = ("none", "lstm", "bilstm")
SINE_PARTS = (
    "tasks",
    "embedding",
    "context and posterior",
    "drawing bases",
    "random features",
    "ridge and likelihood",
    "prior and KL",
    "optimiser",
)
ON_SINE, ON_OMNIGLOT, ON_TABLES = "sine tasks", "Omniglot", "tables"
GRADIENTS = (
    f"ridge, {ON_SINE}",
    f"ridge, {ON_OMNIGLOT}",
    f"exact kernels, {ON_SINE}",
    f"exact kernels, {ON_OMNIGLOT}",
    f"likelihood with tails, {ON_SINE}",
    f"likelihood of one kernel, {ON_SINE}",
    f"KL of one kernel, {ON_SINE}",
    f"kernel of features, {ON_SINE}",
    f"kernel of features, {ON_OMNIGLOT}",
    f"cosine and sine, {ON_SINE}",
    f"cosine and sine, {ON_OMNIGLOT}",
    f"pooling, {ON_OMNIGLOT}",
    f"inverse, {ON_TABLES}",
)
"""What has a gradient written by hand, and on the shapes of which step it is measured."""


@dataclass(frozen=True)
class Work:
    """Sizes; the defaults are what figures are reported for."""

    tasks: int = 6
    """Tasks a training step."""
    way: int = 5
    shot: int = 1
    query: int = 15
    """Query images a class."""
    side: int = 28
    """Of an image."""
    channels: int = 64
    """Of each of the four blocks of the embedding."""
    bases: int = 780
    train_classes: int = 200
    """Of the bank of random pictures that training tasks are drawn from."""
    test_classes: int = 1692
    """Of the test part of Omniglot's usual split: 423 characters in four rotations."""
    samples: int = 20
    """Pictures of a class."""
    episodes: int = 3000
    """Of an evaluation."""
    peer_episodes: int = 20
    """Of a peer's evaluation, which embeds every episode anew: the time of one is what is compared."""
    many_way: int = 20
    many_shot: int = 5
    """The larger tasks whose memory is measured."""
    ready: int = 256
    """Features of a sample where adaptation alone is measured."""
    ready_shot: int = 5
    sine_tasks: int = 25
    sine_shot: int = 5
    sine_query: int = 15
    kernels: int = 32
    """Of a sine step with many."""
    hard_way: int = 60
    hard_query: int = 5
    """The one large task of the preset's own step on Omniglot: gradients written by hand are measured on its shapes."""
    tables: int = 16
    table_rows: int = 50
    """Of a step that trains the network which proposes kernels for rows."""
    calls: int = 20
    """In a row, of pieces that take milliseconds."""
    real: bool = True
    """Evaluate on Omniglot itself where it is at hand."""

    @classmethod
    def quick(cls) -> Work:
        """Sizes that only show that everything runs."""
        return cls(
            tasks=2,
            way=3,
            query=2,
            side=8,
            channels=4,
            bases=16,
            train_classes=8,
            test_classes=8,
            samples=8,
            episodes=20,
            peer_episodes=2,
            many_way=4,
            many_shot=2,
            ready=6,
            ready_shot=2,
            sine_tasks=3,
            sine_shot=3,
            sine_query=4,
            kernels=12,
            hard_way=6,
            hard_query=2,
            tables=2,
            table_rows=6,
            calls=2,
            real=False,
        )

    @property
    def images(self) -> int:
        """Images a training step."""
        return self.tasks * self.way * (self.shot + self.query)

    @property
    def label(self) -> str:
        """In words."""
        return (
            f"{self.tasks} tasks of {self.way}-way {self.shot}-shot with {self.query} queries, "
            f"{self.images} images of {self.side} x {self.side}"
        )

    def convolution_flops(self) -> int:
        """Of one forward and backward pass of the embedding's convolutions, a multiplication and an addition each 1.

        Backward is a product for the weights and one for the inputs, which the first layer does not need.
        """
        total, planes, side = 0, 1, self.side
        for layer in range(4):
            forward = 2 * self.images * side * side * 9 * planes * self.channels
            total += forward * (3 if layer else 2)
            planes, side = self.channels, (side + 1) // 2
        return total

    def to_json(self) -> str:
        """For a worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Work:
        """What :meth:`to_json` gave."""
        return cls(**json.loads(text))
