from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metavrf.errors import UserError
from metavrf.nn.embeddings import ConvNet, Embedding, EmbeddingSettings, Ready, ResNet12, WideResNet, make_embedding

SMALL: dict[str, Callable[..., Embedding]] = {
    "ceil": lambda **options: ConvNet((3, 13, 10), blocks=3, channels=6, **options),
    "floor": lambda **options: ConvNet((3, 13, 10), blocks=3, channels=6, ceil=False, **options),
    "resnet12": lambda **options: ResNet12((3, 13, 10), widths=(4, 6), **options),
    "wrn": lambda **options: WideResNet((3, 13, 10), depth=10, widen=1, **options),
}
each_kind = pytest.mark.parametrize("kind", SMALL)


def pictures(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def experienced(kind: str, **options: Any) -> Embedding:
    """A small network with weights and running statistics as after some training."""
    network = SMALL[kind](**options)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias, -1, 1)
    with torch.no_grad():
        for _ in range(3):
            network.train()(torch.rand(1, 20, 3, 13, 10))
    return network.eval()


class Reference:
    """The same networks in plain double precision, channels first, written from the papers' formulas."""

    def __init__(self, network: Embedding) -> None:
        state = {**network.state_dict(), **dict(network.named_parameters())}
        self.values = {
            name: value.detach().double().contiguous().requires_grad_("running" not in name)
            for name, value in state.items()
            if value.is_floating_point()
        }
        self.training, self.kind = network.training, type(network)
        self.ceil = getattr(network, "ceil", True)
        self.depth = len(network.convolutions if isinstance(network, ConvNet) else network.blocks)  # type: ignore[arg-type]

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.values[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias, mean, variance = (
            self.values[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        if self.training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        scale = weight / (variance + 1e-5).sqrt()
        return (x - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + bias.view(-1, 1, 1)

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind is ConvNet:
            for block in range(self.depth):  # ReLU, then pooling: the same as pooling, then ReLU
                x = self.norm(self.conv(x, f"convolutions.{block}"), f"norms.{block}").relu()
                x = F.max_pool2d(x, 2, ceil_mode=self.ceil)
            return x.flatten(1)
        if self.kind is ResNet12:
            for block in range(self.depth):
                y = self.norm(self.conv(x, f"blocks.{block}.convolutions.0"), f"blocks.{block}.norms.0")
                for layer in (1, 2):
                    y = self.conv(F.leaky_relu(y, 0.1), f"blocks.{block}.convolutions.{layer}")
                    y = self.norm(y, f"blocks.{block}.norms.{layer}")
                x = self.norm(self.conv(x, f"blocks.{block}.shortcut"), f"blocks.{block}.shortcut_norm")
                x = F.max_pool2d(F.leaky_relu(x + y, 0.1), 2, ceil_mode=True)
            return x.mean((2, 3))
        x = self.conv(x, "first")
        for block in range(self.depth):  # of depth 10: one block a group
            stride = 1 if block == 0 else 2
            y = self.norm(x, f"blocks.{block}.norms.0").relu()
            if f"blocks.{block}.shortcut.weight" in self.values:
                x = self.conv(y, f"blocks.{block}.shortcut", stride)
            y = self.norm(self.conv(y, f"blocks.{block}.first", stride), f"blocks.{block}.norms.1").relu()
            x = x + self.conv(y, f"blocks.{block}.second")
        return self.norm(x, "norm").relu().mean((2, 3))


def relative(value: Tensor, expected: Tensor) -> float:
    return ((value.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(
    ("name", "inputs", "channels", "features"),
    [
        ("conv4", (1, 28, 28), 64, 256),
        ("conv4", (3, 32, 32), 64, 256),
        ("conv5", (3, 84, 84), 64, 256),
        ("conv4", (1, 28, 28), 32, 128),
        ("conv4", (3, 21, 33), 4, 4 * 2 * 3),
        ("resnet12", (3, 20, 20), 64, 512),
    ],
)
@torch.inference_mode()
def test_networks_have_the_papers_sizes(name: Any, inputs: tuple[int, ...], channels: int, features: int) -> None:
    network = make_embedding(inputs, EmbeddingSettings(name, channels))
    assert network.features == features
    assert network.eval()(pictures(2, 1, *inputs)).shape == (2, 1, features)


def test_wrn_28_10_has_its_authors_number_of_weights_and_640_features() -> None:
    with torch.device("meta"):  # no memory, no time
        network = make_embedding((3, 84, 84), EmbeddingSettings("wrn28-10"))
    assert network.features == 640
    assert sum(p.numel() for p in network.parameters()) == 36_479_194 - 6_410  # less its 10-class linear layer
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 1 + 24  # and three shortcuts and the linear layer make 28


def test_pictures_too_small_to_pool_are_refused() -> None:
    with pytest.raises(UserError, match="28 x 28 pixels are too small for 5 blocks"):
        make_embedding((3, 28, 28), EmbeddingSettings("conv5"))


@pytest.mark.parametrize(("name", "features"), [("mlp", 40), ("raw", 3), ("ready", 3)])
def test_samples_of_several_numbers_are_embedded_as_such(name: str, features: int) -> None:
    network = make_embedding((3,), EmbeddingSettings(name))
    assert network.features == features
    x = torch.randn(2, 5, 3)
    assert network.eval()(x).shape == (2, 5, features)
    assert torch.equal(network(x, None, "one"), network(x))


@pytest.mark.parametrize(
    ("name", "inputs", "fitting"),
    [("conv4", (1,), "mlp, raw, ready"), ("mlp", (1, 28, 28), "conv4, conv5, resnet12, wrn28-10")],
)
def test_an_embedding_of_another_kind_of_samples_is_refused_with_those_that_fit(
    name: str, inputs: tuple[int, ...], fitting: str
) -> None:
    with pytest.raises(UserError, match=f"'{name}' takes .* choose from {fitting}"):
        make_embedding(inputs, EmbeddingSettings(name))


def worst_error(kind: str, training: bool, dtype: torch.dtype) -> float:
    """Of features, and of the gradients of inputs and weights, relative to the plain network's."""
    network = experienced(kind).train(training).to(dtype)
    reference = Reference(network)
    x = torch.rand(1, 12, 3, 13, 10, dtype=dtype, requires_grad=True)
    plain_x = x.detach()[0].double().requires_grad_()
    z, plain_z = network(x)[0], reference(plain_x)
    direction = torch.randn(z.shape, dtype=dtype)
    parameters = dict(network.named_parameters())
    gradients = torch.autograd.grad((z * direction).sum(), [x, *parameters.values()])
    plain = torch.autograd.grad(
        (plain_z * direction.double()).sum(), [plain_x, *(reference.values[name] for name in parameters)]
    )
    pairs = zip([z, *gradients], [plain_z, *plain], strict=True)
    return max(relative(value, expected) for value, expected in pairs)


@each_kind
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-8)])
def test_fast_networks_are_the_plain_ones_forward_and_backward(
    kind: str, training: bool, dtype: torch.dtype, tolerance: float
) -> None:
    errors = [worst_error(kind, training, dtype) for _ in range(3)]
    assert sorted(errors)[1] < tolerance  # one of three may round a ReLU to the other side of its kink


@each_kind
def test_bytes_and_floats_agree_to_the_bit(kind: str) -> None:
    network, images = experienced(kind), pictures(2, 3, 3, 13, 10)
    assert torch.equal(network(images), network(images.float() / 255))
    assert torch.equal(network(images, 2), network(images.float() / 255, 2))


@each_kind
def test_own_statistics_reach_every_layer(kind: str) -> None:
    network, images = experienced(kind), pictures(2, 6, 3, 13, 10)
    own = network(images, 6)
    reference = Reference(network)
    reference.training = True  # all six samples of a task alone are then its batch
    for task in range(2):
        assert relative(own[task], reference(images[task].double() / 255)) < 1e-4


@each_kind
def test_dropout_is_for_training_only(kind: str) -> None:
    network, images = experienced(kind, dropout=0.5), pictures(1, 6, 3, 13, 10)
    assert torch.equal(network(images), network(images))
    network.train()
    assert not torch.equal(network(images), network(images))


def test_ready_features_are_centred_and_scaled_by_what_training_saw() -> None:
    ready, z = make_embedding((7,), EmbeddingSettings("ready")), 3 + 2 * torch.randn(4, 30, 7)
    assert isinstance(ready, Ready)
    assert ready.features == 7
    trained = ready.train()(z)
    flat = z.flatten(0, 1)
    torch.testing.assert_close(
        trained.flatten(0, 1), (flat - flat.mean(0)) / flat.std(0, correction=0), atol=1e-4, rtol=1e-4
    )
    for _ in range(200):
        ready(z)
    ready.eval()
    assert torch.equal(ready(z)[:1], ready(z[:1]))  # running statistics: no sample depends on another
    torch.testing.assert_close(ready(z), trained, atol=0.05, rtol=0.05)
    own = ready(z, 30)
    torch.testing.assert_close(own.mean(1), torch.zeros(4, 7), atol=1e-5, rtol=0)


def test_a_projection_starts_at_the_principal_axes(generator: torch.Generator) -> None:
    coordinates = torch.randn(2, 100, 3, generator=generator)
    x = 5 + coordinates @ torch.randn(3, 10, generator=generator)  # ten features, three of them worth keeping
    ready, whole = Ready(10, project=3), Ready(10)
    ready.initialise(x)
    assert ready.features == 3
    torch.testing.assert_close(ready(x) @ ready(x).mT, whole(x) @ whole(x).mT, rtol=1e-4, atol=1e-4)


def test_a_feature_that_never_varies_does_not_spoil_the_axes(generator: torch.Generator) -> None:
    x = torch.randn(1, 50, 6, generator=generator)
    x[..., 2] = 4.0
    ready = Ready(6, project=5)
    ready.initialise(x)
    assert ready(x).isfinite().all()
    assert ready.state_dict()["projection.weight"][:, 2].abs().max() < 1e-6


def test_few_features_are_not_projected() -> None:
    assert make_embedding((10,), EmbeddingSettings("ready", project=256)).features == 10
    assert not list(Ready(10, project=10).projection.parameters())
