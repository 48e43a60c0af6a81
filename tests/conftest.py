"""Shared by all tests: one thread, and weights that do not depend on which tests ran before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded_weights() -> Iterator[None]:
    """Layers of torch draw their weights from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)
