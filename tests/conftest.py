"""Shared by all tests: one thread, and weights that do not depend on which tests ran before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from metavrf.serve.app import Served
    from servers import Server


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded_weights() -> Iterator[None]:
    """Layers of torch draw their weights from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What a test adds to a registry is gone after it, so that no test depends on which ran before."""
    from metavrf.learners import LEARNERS
    from metavrf.nn.embeddings import EMBEDDINGS
    from metavrf.tasks.datasets import DATASETS
    from metavrf.tasks.functions import FAMILIES

    registries: tuple[Any, ...] = (LEARNERS, EMBEDDINGS, DATASETS, FAMILIES)
    before = [set(registry) for registry in registries]
    yield
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry) - names:
            registry.remove(name)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.fixture(scope="session")
def curve_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tiny runs on sine curves: MetaVRF and plain random features."""
    import metavrf
    from processes import TINY_KERNEL_OPTIONS, TINY_OPTIONS

    path = tmp_path_factory.mktemp("curves")
    metavrf.train("sine", out=path / "small-sine", quiet=True, **TINY_OPTIONS | {"context": "none"})
    metavrf.train("sine", out=path / "small-rff", quiet=True, learner="rff", **TINY_KERNEL_OPTIONS)
    return path / "small-sine", path / "small-rff"


@pytest.fixture(scope="session")
def served(curve_runs: tuple[Path, Path]) -> Served:
    """The shipped model for drawings, tiny ones for curves."""
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name, reason="the extra 'serve' is not installed")
    from metavrf.serve.app import Served
    from metavrf.serve.models import Curves, Drawings

    return Served(Drawings("omniglot"), Curves(curve_runs[0], curve_runs[1:]))


@pytest.fixture(scope="session")
def server(served: Served) -> Iterator[Server]:
    """A server that all tests of a process share."""
    from servers import running

    with running(served) as started:
        yield started
