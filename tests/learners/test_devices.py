"""Every learner on a device that is not there: what a GPU would refuse to mix, and answers that are those of a CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.learners import LEARNERS
from metavrf.learners.base import Learner, Prediction
from metavrf.learners.measuring import embed_once
from metavrf.learners.prototypical import Prototypical
from metavrf.learners.stream import Stream
from metavrf.nn.embeddings import ConvNet
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from pretended_device import DEVICE, MixedDevicesError, Placed, assert_placed, pretended_device

WAY, SHOT, QUERY, TRAIN_CLASSES = 3, 2, 2, 7
PICTURES = TaskSpec((1, 12, 12), None, way=WAY, train_classes=TRAIN_CLASSES)
SMALL: dict[str, Any] = {"way": WAY, "shot": SHOT, "query": QUERY, "batch": 2}


def few(name: str) -> dict[str, Any]:
    """Few bases, where a learner has such."""
    return {"bases": 16, "train_bases": 8} if hasattr(LEARNERS[name].Settings, "bases") else {}


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    f"{name} {kind}": (name, kind, few(name))
    for name in LEARNERS
    for kind, solved in (("classes", "classification"), ("functions", "regression"))
    if solved in LEARNERS[name].solves
}


EXACT: dict[str, Any] = {"train_kernel": "exact"}
FEATURES: dict[str, Any] = {"train_kernel": "features", "bases": 16, "train_bases": 8}
MIXTURE: dict[str, Any] = {"components": 8, "guards": 2, "combs": 2, "rough": 2}
CASES |= {
    f"metavrf {kind} {number}": ("metavrf", kind, options)
    for kind, settings in {
        "functions": [
            MIXTURE | EXACT | {"candidates": 4},
            MIXTURE | FEATURES | {"context": "bilstm", "moves": True},
            MIXTURE | FEATURES | {"context": "bayes", "stream": 2, "samples": 2},
            FEATURES | {"components": 1, "guards": 0, "context": "lstm", "stream": 2},
            FEATURES | {"components": 1, "guards": 0, "context": "bilstm", "context_inputs": "xy"},
            FEATURES | {"components": 1, "guards": 0, "feature_map": "cosine", "samples": 2},
        ],
        "classes": [
            EXACT | {"components": 4, "evidence": "leave-one-out"},
            FEATURES | {"components": 4, "context": "bilstm", "prototype_weight": 1.0},
            FEATURES | {"context": "lstm", "orthogonal": True, "unit_features": True, "classify_weight": 1.0},
        ],
    }.items()
    for number, options in enumerate(settings)
}
CASES |= {
    "kshot full": ("kshot", "classes", {"prior": "full", "samples": 3}),
    "csn gradient": ("csn", "classes", {"feedback": "gradient"}),
    "maml first order": ("maml", "classes", {"first_order": True, "inner_steps": 2}),
    "resnet12": ("prototypical", "classes", {"embedding": "resnet12", "classify_weight": 1.0}),
    "wrn28-10": ("prototypical", "classes", {"embedding": "wrn28-10"}),
    "mlp": ("rff", "functions", FEATURES | {"embedding": "mlp"}),
}


def make(name: str, kind: str, options: dict[str, Any]) -> tuple[Learner, Episodes]:
    """A learner on the CPU, started on training tasks, and those."""
    generator = torch.Generator().manual_seed(1)
    if kind == "functions":
        config = Config.of("sine", name, **SMALL | options)
        x = torch.rand(4, SHOT + 3 + QUERY, 1, generator=generator) * 4 - 2
        y = torch.sin(3 * x + torch.rand(4, 1, 1, generator=generator))
        support_x, query_x, support_y, query_y = x[:, :-QUERY], x[:, -QUERY:], y[:, :-QUERY], y[:, -QUERY:]
        tasks = Episodes(support_x, support_y, query_x, query_y, stream=config.episode.stream)
        spec = TaskSpec()
    else:
        dropout = 0.1 if LEARNERS[name].embeds_alone else 0.0  # inner loops take none
        small = {"embedding": "conv4", "channels": 8, "dropout": dropout}
        config = Config.of("omniglot", name, **SMALL | small | options)
        bank = torch.randint(0, 256, (30, 1, 12, 12), generator=generator, dtype=torch.uint8)
        support, query = torch.arange(WAY).repeat(SHOT), torch.arange(WAY).repeat(QUERY)
        rows = torch.randint(0, 30, (4, len(support) + len(query)), generator=generator)
        classes = torch.stack([torch.randperm(TRAIN_CLASSES, generator=generator)[:WAY] for _ in range(4)])
        support_x, query_x = rows.split([len(support), len(query)], dim=1)
        tasks = Episodes(support_x, support.expand(4, -1), query_x, query.expand(4, -1), WAY, bank, classes=classes)
        spec = PICTURES
    learner = config.build(spec)
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(4)
        learner.initialise(tasks.looked_up())
    return learner, tasks


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def step(learner: Learner, tasks: Episodes) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of a training step, on the CPU; what the step leaves to the next is taken up."""
    learner.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        prediction = learner(tasks.to(learner.device), stream(0, "draws"))
    assert prediction.loss is not None
    learner.zero_grad()
    prediction.loss.backward()
    learner.remember(prediction)
    found = {name: weight.grad.cpu() for name, weight in learner.named_parameters() if weight.grad is not None}
    return prediction.loss.detach().cpu(), found


def answers(learner: Learner, tasks: Episodes) -> dict[str, Tensor]:
    """What it says at test time, of tasks on the CPU: predictions, and those of a folded predictor."""
    learner.eval()
    found = learner.predict(tasks)
    task = replace(tasks.looked_up(), stream=1)[:1]
    with torch.no_grad():
        folded = learner.adapted(task.asking(task.query_x[:, :0]))(task.query_x[0])
    told = {"mean": found.mean, "samples": found.samples, "std": found.std, "folded": folded}
    if isinstance(folded, tuple):
        told |= {"folded": folded[0], "folded std": folded[1]}
    if tasks.bank is not None and learner.embeds_alone:
        with torch.no_grad():
            bank = embed_once(learner, tasks)
        told |= {"bank": bank.bank, "from a bank": learner.predict(bank, embedded=True).mean}
    return {name: tensor for name, tensor in told.items() if tensor is not None}


@pytest.mark.parametrize("case", CASES)
def test_a_learner_trains_and_answers_on_another_device_as_on_the_cpu(case: str) -> None:
    name, kind, options = CASES[case]
    here, tasks = make(name, kind, options)
    learner = copy.deepcopy(here)
    loss, gradients = step(here, tasks)
    said = answers(here, tasks)
    with pretended_device():
        learner.to(DEVICE)
        assert_placed(learner)
        there = step(learner, tasks)
        assert_placed(learner)  # what a step leaves to the next is there too
        said_there = answers(learner, tasks)
    assert torch.equal(there[0], loss)
    assert there[1].keys() == gradients.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(there[1][key], gradient, msg=key)
    assert said_there.keys() == said.keys()
    for key, value in said.items():
        assert type(said_there[key]) is Tensor  # back on the CPU
        torch.testing.assert_close(said_there[key], value, msg=key)


def test_a_stream_remembers_on_the_device_and_answers_on_the_cpu() -> None:
    here, tasks = make("metavrf", "functions", MIXTURE | FEATURES | {"context": "bilstm", "stream": 2})
    learner, days = copy.deepcopy(here), [replace(tasks, stream=1)[day : day + 1] for day in range(2)]

    def remembered(stream: Stream) -> Tensor:
        return torch.cat([stream.solve(day).mean for day in days])

    alone = remembered(here.eval().stream())
    with pretended_device():
        stream_there = learner.eval().to(DEVICE).stream()
        found = remembered(stream_there)
    assert isinstance(stream_there.memory.hidden, Placed)
    torch.testing.assert_close(found, alone)


# The test itself


class Wrong(Prototypical):
    """A learner with a mistake that no CPU shows."""

    def solve(self, episodes: Episodes, memory: Any = None, generator: torch.Generator | None = None) -> Prediction:
        mistake = self.mistake(episodes.query_x)
        return super().solve(replace(episodes, query_x=episodes.query_x + 0 * mistake), memory, generator)

    def mistake(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class NewTensor(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return x * torch.arange(x.shape[-1])


class InsideVmap(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return vmap(lambda row: row * torch.ones(row.shape[-1]))(x)


class NotABuffer(Wrong):
    def setup(self, generator: torch.Generator) -> None:
        self.scale = torch.ones(8)

    def mistake(self, x: Tensor) -> Tensor:
        return x * self.scale


class Index(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return x[:, torch.zeros(1, dtype=torch.long)]


class DrawnThere(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return torch.randn_like(x)


class DrawnThereByTheGlobalGenerator(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, device=x.device)


class ByNumPy(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return x * float(x.detach().numpy().mean())


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.ones(gradient.shape[-1])


class InBackward(Wrong):
    def mistake(self, x: Tensor) -> Tensor:
        return _InBackward.apply(x)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (NewTensor, "aten.mul.Tensor mixes devices: \\[8\\] is on the CPU"),
        (InsideVmap, "aten.mul.Tensor mixes devices"),
        (NotABuffer, "aten.mul.Tensor mixes devices"),
        (Index, "aten.index.Tensor mixes devices"),
        (DrawnThere, "aten.randn_like.default draws on the device"),
        (DrawnThereByTheGlobalGenerator, "aten.randn.default draws on the device"),
        (ByNumPy, "numpy"),
        (InBackward, "aten.mul.Tensor mixes devices"),
    ],
)
def test_a_mistake_of_placement_is_found(wrong: type[Wrong], sentence: str) -> None:
    _, tasks = make("prototypical", "classes", {})
    learner = wrong(ConvNet((1, 12, 12), blocks=4, channels=8), PICTURES)
    step(learner, tasks)  # nothing is wrong on the CPU
    with pretended_device(), pytest.raises((MixedDevicesError, RuntimeError), match=sentence):
        step(learner.to(DEVICE), tasks)


def test_numbers_without_a_dimension_may_mix_as_on_a_gpu() -> None:
    with pretended_device():
        x = torch.arange(3.0).to(DEVICE)
        assert (x * torch.tensor(2.0)).cpu().tolist() == [0.0, 2.0, 4.0]
        assert isinstance(x.new_tensor([1.0]), Placed)
        assert isinstance(torch.tensor([1.0], device=x.device), Placed)
        with pytest.raises(MixedDevicesError, match=r"aten\.stack\.default mixes devices"):
            torch.stack([x[0], torch.tensor(2.0)])
        with pytest.raises(MixedDevicesError):
            torch.ones(3) + x[0]  # the other way round a GPU refuses it
