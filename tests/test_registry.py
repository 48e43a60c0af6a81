"""Names that users may give: unknown ones are refused with what there is, the package's own cannot be taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import metavrf
from metavrf.config import Config
from metavrf.errors import UserError
from metavrf.learners import LEARNERS, register_learner
from metavrf.learners.prototypical import Prototypical
from metavrf.learners.rff import RFF
from metavrf.nn.embeddings import EMBEDDINGS, EmbeddingSettings, make_embedding, register_embedding
from metavrf.nn.mlp import MLP, Raw
from metavrf.registry import Registry
from metavrf.tasks.datasets import DATASETS, register_dataset
from metavrf.tasks.functions import FAMILIES, FunctionFamily, Sine, register_family

REGISTRIES: dict[str, Registry[Any]] = {
    "learner": LEARNERS,
    "family of functions": FAMILIES,
    "data set": DATASETS,
    "embedding": EMBEDDINGS,
}
each_registry = pytest.mark.parametrize("kind", REGISTRIES)


@pytest.fixture(autouse=True)
def own_names() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = {kind: list(names) for kind, names in REGISTRIES.items()}
    yield
    for kind, names in REGISTRIES.items():
        for name in set(names) - set(before[kind]):
            names.remove(name)
        assert list(names) == before[kind]


@each_registry
def test_an_unknown_name_is_refused_with_all_there_are(kind: str) -> None:
    names = REGISTRIES[kind]
    with pytest.raises(UserError, match=f"^there is no {kind} 'xyzzy': choose from ") as refused:
        names["xyzzy"]
    assert ", ".join(names) in str(refused.value)
    assert "--plugin" in str(refused.value)
    assert "xyzzy" not in names
    assert names.get("xyzzy") is None


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("learner", "prototypes", "prototypical"),
        ("learner", "MetaVRF", "metavrf"),
        ("family of functions", "sinus", "sine"),
        ("data set", "omniglott", "omniglot"),
        ("embedding", "resnet-12", "resnet12"),
    ],
)
def test_a_name_that_is_close_to_a_known_one_is_answered_with_it(kind: str, name: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"there is no {kind} '{name}' \(did you mean {meant}\?\)"):
        REGISTRIES[kind][name]


def test_an_unknown_name_is_refused_wherever_it_is_given() -> None:
    with pytest.raises(UserError, match=r"no learner 'metavfr' \(did you mean metavrf\?\)"):
        Config.of("sine", "metavfr")
    with pytest.raises(UserError, match=r"no task 'omniglott' \(did you mean omniglot\?\): .*sine, .*omniglot"):
        Config.of("omniglott")
    with pytest.raises(UserError, match="no embedding 'conv6'"):
        Config.of("omniglot", embedding="conv6").validate()


def test_what_comes_with_the_package_cannot_be_replaced_or_removed() -> None:
    class Other(RFF):
        pass

    class Wave(Sine):
        pass

    with pytest.raises(UserError, match="there is a learner 'rff' already: choose another name"):
        register_learner("rff")(Other)
    with pytest.raises(UserError, match="there is a family of functions 'sine' already"):
        register_family("sine")(Wave)
    with pytest.raises(UserError, match="there is a data set 'omniglot' already"):
        register_dataset(DATASETS["omniglot"])
    with pytest.raises(UserError, match="there is an embedding 'conv4' already"):
        register_embedding("conv4")(lambda *_, **__: Raw(1))
    for names in REGISTRIES.values():
        for name in list(names):
            entry = names[name]
            names.remove(name)
            assert names[name] is entry
    assert (LEARNERS["rff"], FAMILIES["sine"]) == (RFF, Sine)
    assert Wave.name == "sine"  # as it was: inherited


def nearest(suffix: str) -> type[Prototypical]:
    """A learner of one's own, as the same file would make it anew each time it is run."""

    class Nearest(Prototypical):
        """The nearest class mean."""

    Nearest.__qualname__ += suffix
    return Nearest


def test_a_learner_of_ones_own_is_known_until_it_is_removed_and_may_be_run_twice() -> None:
    first, again = nearest(""), nearest("")
    assert register_learner("nearest")(first) is first
    assert LEARNERS["nearest"] is first
    register_learner("nearest")(again)  # the same file, run again
    assert LEARNERS["nearest"] is again
    assert list(LEARNERS)[-1] == "nearest"
    assert Config.of("omniglot", "nearest").validate().learner == "nearest"
    with pytest.raises(UserError, match="there is a learner 'nearest' already"):
        register_learner("nearest")(nearest("2"))
    LEARNERS.remove("nearest")
    with pytest.raises(UserError, match="no learner 'nearest'"):
        Config.of("omniglot", "nearest")


def test_two_families_cannot_share_a_name() -> None:
    @register_family("ramp")
    class Ramp(FunctionFamily):
        parameters = {"slope": (0.0, 1.0)}

        def evaluate(self, x: Tensor, **parameters: Tensor) -> Tensor:
            return parameters["slope"] * x

    class Slope(Ramp):
        pass

    assert metavrf.Config.of("ramp").kind == "functions"
    with pytest.raises(UserError, match="there is a family of functions 'ramp' already"):
        register_family("ramp")(Slope)
    assert FAMILIES["ramp"] is Ramp


def test_two_embeddings_cannot_share_a_name() -> None:
    @register_embedding("wide", takes="numbers")
    def wide(inputs: tuple[int, ...], settings: EmbeddingSettings, **_: Any) -> MLP:
        return MLP((inputs[0], 100))

    def wider(inputs: tuple[int, ...], settings: EmbeddingSettings, **_: Any) -> MLP:
        return MLP((inputs[0], 200))

    register_embedding("wide", takes="numbers")(wide)
    with pytest.raises(UserError, match="embedding 'wide' already"):
        register_embedding("wide", takes="numbers")(wider)
    assert make_embedding((2,), EmbeddingSettings("wide"))(torch.randn(1, 3, 2)).shape == (1, 3, 100)
    assert Config.of("sine", embedding="wide", components=2, guards=0).build().embedding.features == 100
    with pytest.raises(UserError, match="give pictures or numbers"):
        register_embedding("sounds", takes="sounds")
