"""What the MetaVRF paper's tables say of each method, to stand beside what is measured here.

Most figures are quoted there from the methods' own papers, each with its own backbone, split and number of queries.
"""

from __future__ import annotations

from typing import Any

from metavrf.config import Config

# Accuracy (%) by task, ways and shots, then by learner; MetaVRF by its context.
PUBLISHED: dict[tuple[str, int, int], dict[str, float]] = {
    ("omniglot", 5, 1): {
        "matching": 98.1,
        "maml": 98.7,
        "prototypical": 98.5,
        "versa": 99.7,
        "r2d2": 98.6,
        "siamese": 96.7,
        "snail": 99.1,
        "gnn": 99.2,
        "imp": 98.4,
        "rbf": 95.5,
        "rff": 99.5,
        "metavrf none": 99.6,
        "metavrf lstm": 99.7,
        "metavrf bilstm": 99.8,
    },
    ("omniglot", 5, 5): {
        "matching": 98.9,
        "maml": 99.9,
        "prototypical": 99.5,
        "versa": 99.8,
        "r2d2": 99.7,
        "siamese": 98.4,
        "snail": 99.8,
        "gnn": 99.7,
        "imp": 99.5,
        "rbf": 99.1,
        "rff": 99.5,
        "metavrf none": 99.6,
        "metavrf lstm": 99.8,
        "metavrf bilstm": 99.9,
    },
    ("omniglot", 20, 1): {
        "matching": 93.8,
        "maml": 95.8,
        "prototypical": 95.3,
        "versa": 97.7,
        "r2d2": 94.7,
        "siamese": 88.0,
        "snail": 97.6,
        "gnn": 97.4,
        "imp": 95.0,
        "rbf": 92.8,
        "rff": 97.2,
        "metavrf none": 97.0,
        "metavrf lstm": 97.5,
        "metavrf bilstm": 97.8,
    },
    ("omniglot", 20, 5): {
        "matching": 98.5,
        "maml": 98.9,
        "prototypical": 98.7,
        "versa": 98.8,
        "r2d2": 98.9,
        "siamese": 96.5,
        "snail": 99.4,
        "gnn": 99.0,
        "imp": 98.6,
        "rbf": 97.8,
        "rff": 98.3,
        "metavrf none": 98.4,
        "metavrf lstm": 99.0,
        "metavrf bilstm": 99.2,
    },
    ("cifar-fs", 5, 1): {
        "maml": 58.9,
        "prototypical": 55.5,
        "relation": 55.0,
        "versa": 62.5,
        "r2d2": 62.3,
        "gnn": 61.9,
        "rbf": 46.0,
        "rff": 61.1,
        "metavrf none": 61.1,
        "metavrf lstm": 62.1,
        "metavrf bilstm": 63.1,
    },
    ("cifar-fs", 5, 5): {
        "maml": 71.5,
        "prototypical": 72.0,
        "relation": 69.3,
        "versa": 75.1,
        "r2d2": 77.4,
        "gnn": 75.3,
        "rbf": 59.8,
        "rff": 74.7,
        "metavrf none": 74.3,
        "metavrf lstm": 76.0,
        "metavrf bilstm": 76.5,
    },
    ("mini-imagenet", 5, 1): {
        "matching": 44.2,
        "maml": 48.7,
        "prototypical": 47.4,
        "relation": 50.4,
        "versa": 53.3,
        "r2d2": 49.5,
        "meta-lstm": 43.4,
        "snail": 45.1,
        "gnn": 50.3,
        "platipus": 50.1,
        "cavia": 51.8,
        "imaml": 49.3,
        "rbf": 42.1,
        "rff": 52.8,
        "metavrf none": 51.3,
        "metavrf lstm": 53.1,
        "metavrf bilstm": 54.2,
    },
    ("mini-imagenet", 5, 5): {
        "matching": 57.0,
        "maml": 63.1,
        "prototypical": 65.4,
        "relation": 65.3,
        "versa": 67.3,
        "r2d2": 65.4,
        "meta-lstm": 60.6,
        "snail": 55.2,
        "gnn": 66.4,
        "cavia": 65.6,
        "rbf": 54.9,
        "rff": 65.4,
        "metavrf none": 66.1,
        "metavrf lstm": 66.8,
        "metavrf bilstm": 67.8,
    },
}

# Their authors' code normalises by the batch at hand at test time too, so these figures saw the other queries.
TRANSDUCTIVE = frozenset({"maml", "versa", "metavrf", "rff", "rbf"})


def published(config: Config[Any], way: int | None, shot: int) -> str:
    """The paper's figure for a run's learner at a way and shot, as text; † marks one known to be transductive."""
    learner = config.learner
    name = f"metavrf {config.model.context}" if learner == "metavrf" else learner
    figure = PUBLISHED.get((config.task, way or 0, shot), {}).get(name)
    return "" if figure is None else f"{figure:.1f}" + ("†" if learner in TRANSDUCTIVE else "")
