"""An adapted predictor as an ONNX file: embedding, random features, linear map and softmax in one graph."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metavrf.errors import UserError
from metavrf.estimators import MetaVRFClassifier, MetaVRFRegressor
from metavrf.files import write_atomically
from metavrf.learners.adapted import Adapted, AdaptedMixture, Answer
from metavrf.learners.row_mixture import RowsPredictor

TOLERANCE = 1e-4
NEEDED = ("onnx", "onnxruntime", "onnxscript")


class _WithNetwork(nn.Module):
    """The pre-trained network of pictures before the predictor."""

    def __init__(self, network: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.network, self.predictor = network, predictor

    def forward(self, x: Tensor) -> Answer:
        answer: Answer = self.predictor(self.network(x))
        return answer


def export(estimator: MetaVRFClassifier | MetaVRFRegressor, out: Path, *, features: bool = False) -> dict[str, Any]:
    """Write a fitted estimator to ``out`` (.onnx) and return what its metadata says of inputs and outputs.

    ``features`` asks for features as input where the estimator takes pictures too. The file is compared with PyTorch
    before it is written.
    """
    if out.suffix != ".onnx":
        raise UserError(f"{out} must end in .onnx")
    if any(find_spec(package) is None for package in NEEDED):
        raise UserError("the export needs the extra 'onnx': pip install 'metavrf[onnx]'")
    module, example, described = predictor(estimator, features=features)
    names = ["probabilities"] if isinstance(estimator, MetaVRFClassifier) else ["mean", "std"]
    described |= {
        "shape": ["samples", *example.shape[1:]],
        "type": str(example.dtype).removeprefix("torch."),
        "outputs": names,
        "classes": getattr(estimator, "classes_", np.empty(0)).tolist(),
    }
    data = _graph(module, example, names, {"metavrf": json.dumps(described)})
    difference = _difference(data, module, example)
    if not difference <= TOLERANCE:
        raise UserError(f"the ONNX file would answer otherwise than the model, by {difference:.2g}: it is not written")
    write_atomically(out, data)
    return described | {"difference": difference}


def predictor(
    estimator: MetaVRFClassifier | MetaVRFRegressor, *, features: bool = False
) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """The whole predictor of an estimator, inputs for it, and what they are."""
    adapted = getattr(estimator, "predictor_", None)
    if not isinstance(adapted, (Adapted, AdaptedMixture, RowsPredictor)):
        raise UserError("only a fitted estimator of MetaVRF, of RFF or without a model can be exported")
    module = copy.deepcopy(adapted)
    if isinstance(estimator, MetaVRFClassifier):
        module.float()  # the band of a regression needs double precision inside, probabilities do not
    trained = estimator.model_
    generator = torch.Generator().manual_seed(0)
    if trained is None:
        return module, estimator.support_x_.to(next(module.buffers()).dtype), {"input": "features"}
    module.embedding = copy.deepcopy(trained.learner.embedding)
    inputs = trained.spec.inputs
    if trained.preprocessing is not None and not features:
        how = trained.preprocessing
        pixels = torch.randint(0, 256, (2, *inputs), generator=generator, dtype=torch.uint8)
        return module, pixels, {"input": "pictures", "ink_is_bright": how.invert}
    if trained.preprocessing is not None:
        module.embedding = nn.Identity()
        return module, estimator.support_x_, {"input": "features of the embedding"}
    if trained.spec.embedder and not features:
        from metavrf.networks import picture_network

        network = picture_network(trained.spec.embedder)
        size = network.resolution
        pixels = torch.randint(0, 256, (2, 3, size, size), generator=generator, dtype=torch.uint8)
        return _WithNetwork(network, module), pixels, {"input": "pictures", "ink_is_bright": False}
    return module, torch.randn(2, *inputs, generator=generator), {"input": "features"}


def _graph(module: nn.Module, example: Tensor, names: list[str], metadata: dict[str, str]) -> bytes:
    """The ONNX graph of a module, for any number of samples."""
    samples = torch.export.Dim("samples", min=1)
    said = io.StringIO()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(said), redirect_stderr(said), torch.no_grad():
            program = torch.onnx.export(
                module.eval(),
                (example[:2].repeat(2, *[1] * (example.ndim - 1))[:3],),
                dynamo=True,
                input_names=["x"],
                output_names=names,
                dynamic_shapes=({0: samples},),
            )
    finally:
        logging.disable(level)
    assert program is not None
    program.model.metadata_props.update(metadata)
    data: bytes = program.model_proto.SerializeToString()
    return data


def _difference(data: bytes, module: nn.Module, example: Tensor) -> float:
    """The largest difference between what onnxruntime and PyTorch answer."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    answers = session.run(None, {"x": example.numpy()})
    with torch.no_grad():
        expected = module(example)
    expected = expected if isinstance(expected, tuple) else (expected,)
    return max(float(np.abs(a - e.numpy()).max()) for a, e in zip(answers, expected, strict=True))
