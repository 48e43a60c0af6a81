"""What the classifier and the regressor share: features, the support set, conditioning, saving."""

from __future__ import annotations

import copy
import math
import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from metavrf.episodes import Episodes
from metavrf.errors import Caution, UserError
from metavrf.files import (
    PathLike,
    beside,
    load_weights,
    read_json,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)
from metavrf.learners import measuring
from metavrf.learners.base import Learner
from metavrf.learners.row_mixture import RowsPredictor
from metavrf.learners.rows import Rows
from metavrf.learners.suggesting import suggest
from metavrf.learners.untrained import Untrained
from metavrf.manifest import NAME as MANIFEST
from metavrf.manifest import check, seal
from metavrf.model import TrainedModel, load_once
from metavrf.nn.columns import Proposer
from metavrf.pictures import are_pictures
from metavrf.plots import draw_relevance
from metavrf.randomness import stream
from metavrf.runs.directory import SHIPPED
from metavrf.schema import check_shape
from metavrf.tables import COLUMNS_FILE

ESTIMATOR_FILE, SUPPORT_FILE = "estimator.json", "support.safetensors"
EXTREME, EXTREME_OF_MODELS = 1e100, 1e15  # whose squares double and single precision still hold
FOLDER = (ESTIMATOR_FILE, SUPPORT_FILE, COLUMNS_FILE, "config.toml", "data.json", "model.safetensors", MANIFEST)
_SHAPE = {
    "kind": str,
    "pretrained": bool,
    "parameters": {"bases?": (int, None), "ridge?": (float, None), "random_state?": (int, None), "infer?": bool},
    "fitted": {"n_features_in_?": int, "feature_names_in_?": [Any]},
    "seed?": int,
}
_CLASSIFIER = {"classes": [(str, int, float, bool)], "dtype": str, "leave_one_out": (dict, None)}


class FewShot(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share: features, the support set, conditioning, saving.

    Attributes after ``fit``:
        support_x_: ``[S, d]`` features of the support samples; ``partial_fit`` adds to them.
        support_y_: their labels or targets.
        model_: the model with all it must be given, or None.
        seed_: what the bases were drawn from, where they were.
        learner_: its learner, or one that needs no training.
        predictor_: the learner adapted to the support.
    """

    kind: ClassVar[str]
    support_x_: Tensor
    support_y_: NDArray[Any]
    model_: TrainedModel | None
    seed_: int
    learner_: Learner
    predictor_: nn.Module

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        bases: int | None = None,
        ridge: float | None = None,
        infer: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.bases = bases
        self.ridge = ridge
        self.infer = infer
        self.random_state = random_state

    @classmethod
    def from_pretrained(cls, model: PathLike, **parameters: Any) -> Self:
        """An estimator on a model that comes with the package, by its name, or on a run's directory."""
        estimator = cls(model=model, **parameters)
        estimator._opened(estimator._seed())  # say at once what is wrong with it
        return estimator

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Take these samples as the support set.

        Args:
            X: pictures, as paths, Pillow images or arrays ``[N, height, width]`` or ``[N, height, width, 3]`` as of a
                picture file; or features ``[N, d]``.
            y: labels of any kind, or real targets ``[N]`` or ``[N, p]``.
        """
        return self._learn(X, y, afresh=True)

    def save(self, folder: PathLike, *, columns: Any = None) -> Path:
        """Write the fitted estimator, with its model, to a folder: safetensors and JSON.

        The folder must be new, empty, or hold a fitted model, which is replaced in one step. ``columns`` says of what
        table the rows are.
        """
        check_is_fitted(self, "predictor_")
        path = Path(folder)
        if (path / "config.toml").exists() and not (path / ESTIMATOR_FILE).exists():
            raise UserError(f"{path} holds a run: choose another folder")
        if self.random_state is not None and not isinstance(self.random_state, int | np.integer):
            raise UserError("only an estimator with a number, or None, as its random_state can be saved")
        trained = self.model_
        copied = {}  # the folder is a run of its own: it does not depend on what the model's name means later
        if trained is not None:
            run = trained.run
            if not run.model_file.exists():
                raise UserError(f"the model of {run.path} is gone: save the estimator while it is there")
            files = (run.config_file, run.data_file, run.model_file)
            copied = {file.name: check(file).read_bytes() for file in files if file.exists()}
        tensors = {"support_x": self.support_x_, "support_y": self._numbers()}
        if trained is None:
            tensors |= {f"learner.{name}": tensor for name, tensor in self._drawn(self.learner_).items()}
        with beside(path, replacing=FOLDER) as unfinished:
            for name, data in copied.items():
                write_atomically(unfinished / name, data)
            write_tensors(unfinished / SUPPORT_FILE, tensors, {})
            write_json(unfinished / ESTIMATOR_FILE, self._saved(pretrained=trained is not None))
            if columns is not None:
                write_json(unfinished / COLUMNS_FILE, columns)
            seal(unfinished, "fitted model", list(unfinished.iterdir()))
        return path

    @classmethod
    def load(cls, folder: PathLike) -> Self:
        """What :meth:`save` wrote."""
        path = Path(folder)
        values = read(path)
        if values["kind"] != cls.kind:
            raise UserError(f"{path} is a {values['kind']}, not a {cls.kind}")
        tensors, _ = read_tensors(check(path / SUPPORT_FILE))
        try:
            parameters = {"infer": False} | values["parameters"]  # there was no network once
            estimator = cls(path if values["pretrained"] else None, **parameters)
            for name, value in values["fitted"].items():
                setattr(estimator, name, np.array(value, dtype=object) if isinstance(value, list) else value)
            estimator.seed_ = int(values.get("seed", estimator.random_state or 0))  # it was not always kept
            if "epsilon" in tensors:  # saved while random features were the default
                tensors["learner.epsilon"] = tensors["epsilon"]
                estimator.bases = 2 * tensors["epsilon"].shape[-1]
            estimator.support_x_ = tensors["support_x"]
            estimator._restore(tensors["support_y"], values)
            estimator.model_ = estimator._opened(estimator.seed_)
            estimator.learner_ = estimator._learner(estimator.support_x_.shape[1])
            if estimator.model_ is None:
                estimator.learner_ = copy.deepcopy(estimator.learner_)  # it may serve others
                drawn = {name: tensors[f"learner.{name}"] for name in estimator._drawn(estimator.learner_)}
                estimator.learner_.load_state_dict(drawn, strict=False)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path} is damaged: {ESTIMATOR_FILE} and {SUPPORT_FILE} do not fit ({error})") from error
        estimator._condition()
        return estimator

    @property
    def kernels_(self) -> dict[str, NDArray[np.float64]]:
        """What was inferred without a model: the kernels of the answer, the heaviest first.

        ``weights [M]``; ``lengths [M, d]`` in the units of the columns, infinite where a kernel does not use a column
        (of rows of length 1, where those are used); ``linear [M]``, the linear share; ``noise [M]``, λ as a share of
        the kernel's variance; ``relevance [d]``, between 0 and 1: how much each column counts, over all kernels.
        """
        return self._mixture().described()

    def plot_relevance(self, ax: Any = None) -> Any:
        """Draw how much each column counts, the most relevant first; returns the axes."""
        relevance = self.kernels_["relevance"]
        names = getattr(self, "feature_names_in_", [f"column {number}" for number in range(len(relevance))])
        return draw_relevance(relevance, names, ax)

    def log_marginal_likelihood(self) -> float:
        """The log evidence of the support, averaged over the kernels; targets are standardised, classes one-hot."""
        return float(self._mixture().evidence)

    def suggest(self, pool: Any, n: int = 5) -> NDArray[np.int64]:
        """Which samples to label next: the numbers of ``n`` samples of ``pool``, the most wanted first.

        A sample is wanted where its label would tell most of what is still open, given the labels that are there and
        those of the samples before it; so the samples of a batch differ. It is judged by the mixture of kernels on
        rows, or where there is a model on its features.
        """
        check_is_fitted(self, "predictor_")
        features = self._features(pool)
        if not 1 <= n <= len(features):
            raise UserError(f"n = {n} must be from 1 to {len(features)}, the samples of the pool")
        mixture = self.predictor_
        if not isinstance(mixture, RowsPredictor):
            rows = _untrained(features.shape[1], self.kind, None, None, self.seed_)
            mixture = rows.adapted(self._support(), embedded=True)
        if not isinstance(mixture, RowsPredictor):
            raise UserError(f"{len(self.support_x_)} samples are too many to suggest others for: give at most 4,000")
        generator = stream(self.seed_, "draws")
        return np.array(suggest(mixture, features.double(), n, generator))

    def _mixture(self) -> RowsPredictor:
        check_is_fitted(self, "predictor_")
        if not isinstance(self.predictor_, RowsPredictor):
            raise AttributeError("only an estimator without a model and without bases has a mixture of kernels")
        return self.predictor_

    def _learn(self, X: Any, y: ArrayLike, *, afresh: bool) -> Self:
        self.__dict__.pop("leave_one_out_", None)
        if afresh:
            self.seed_ = self._seed()
            self.model_ = self._opened(self.seed_)
        features, targets = self._samples(X, y, reset=afresh)
        if afresh:
            self.learner_ = self._learner(features.shape[1])
        else:
            if targets.dtype.kind != self.support_y_.dtype.kind or targets.shape[1:] != self.support_y_.shape[1:]:
                raise UserError(
                    f"y is {targets.dtype} {targets.shape[1:]}, but the support's is {self.support_y_.dtype} "
                    f"{self.support_y_.shape[1:]}: give the same kind"
                )
            features = torch.cat([self.support_x_, features])
            targets = np.concatenate([self.support_y_, targets])
        self.support_x_, self.support_y_ = features, targets
        self._condition()
        return self

    def _learner(self, columns: int) -> Learner:
        """The model's, or one for features of that many columns."""
        if self.model_ is not None:
            return self.model_.learner
        return _untrained(columns, self.kind, self.bases, self.ridge, self.seed_, bool(self.infer))

    @staticmethod
    def _drawn(learner: Learner) -> dict[str, Tensor]:
        """What a learner without a model has drawn at random, and the network that proposes kernels, as it ships."""
        names = ("scale", "wave", "linear", "noise", "moves") if isinstance(learner, Rows) else ("epsilon",)
        state = learner.state_dict()
        network = {name: tensor.half() for name, tensor in state.items() if name.startswith("proposer.")}
        return {name: state[name] for name in names} | network

    def _condition(self) -> None:
        self.predictor_ = self.learner_.adapted(self._support(), embedded=True)

    def _support(self) -> Episodes:
        raise NotImplementedError

    def _numbers(self) -> Tensor:
        """The support's targets as a tensor to save."""
        return self._support().support_y[0]

    def _saved(self, *, pretrained: bool) -> dict[str, Any]:
        """What stands in the JSON file."""
        names = ("n_features_in_", "feature_names_in_")
        fitted = {name: np.asarray(getattr(self, name)).tolist() for name in names if hasattr(self, name)}
        return {
            "kind": self.kind,
            "pretrained": pretrained,
            "parameters": {
                name: int(value) if isinstance(value, np.integer) else value
                for name, value in self.get_params().items()
                if name != "model"
            },
            "seed": self.seed_,
            "fitted": fitted,
        }

    def _restore(self, numbers: Tensor, values: dict[str, Any]) -> None:
        """Set ``support_y_``, and what else was in the JSON file."""
        raise NotImplementedError

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _opened(self, seed: int) -> TrainedModel | None:
        """The model, if there is one."""
        if self.model is None:
            return None
        if self.ridge is not None:
            raise UserError("ridge is for estimators without a model: a model has learned its own")
        trained = load_once(self.model, self.bases, None if self.bases is None else seed)
        regression = trained.spec.targets is not None
        if regression != (self.kind == "regressor"):
            fitting = "MetaVRFRegressor" if regression else "MetaVRFClassifier"
            raise UserError(f"{trained.name} was trained for {fitting}, not for {type(self).__name__}")
        return trained

    def _samples(self, X: Any, y: ArrayLike, *, reset: bool) -> tuple[Tensor, NDArray[Any]]:
        """Features and targets, checked."""
        if self.model_ is not None and are_pictures(X):
            check_consistent_length(X, y)
            targets = self._targets(y if self.kind == "regressor" else column_or_1d(y, warn=True))
            return self._features(X, reset=reset), targets
        numeric = self.kind == "regressor"
        table, y = validate_data(self, X, y, reset=reset, dtype=np.float64, y_numeric=numeric, multi_output=numeric)
        return self._of_table(table), self._targets(y)

    def _targets(self, y: ArrayLike) -> NDArray[Any]:
        raise NotImplementedError

    def _features(self, X: Any, *, reset: bool = False) -> Tensor:
        """Features ``[N, d]``."""
        if self.model_ is not None and are_pictures(X):
            return self.model_.of_pictures(X)
        return self._of_table(validate_data(self, X, reset=reset, dtype=np.float64))

    def _of_table(self, table: NDArray[Any]) -> Tensor:
        limit = EXTREME if self.model_ is None else EXTREME_OF_MODELS
        size = np.abs(table).max(initial=0.0)
        if size > limit or 0 < size < 1 / limit:
            advice = f"beyond what can be told apart (1e±{math.log10(limit):.0f}): rescale X"
            warnings.warn(f"X holds numbers as large as {size:.3g}, {advice}", Caution, stacklevel=4)
        return torch.tensor(table) if self.model_ is None else self.model_.of_table(table)

    @torch.no_grad()
    def _answers(self, X: Any) -> Any:
        """What the predictor says of all samples, some at a time."""
        check_is_fitted(self, "predictor_")
        size = getattr(self.predictor_, "at_once", measuring.SAMPLES_AT_ONCE)
        return [self.predictor_(chunk) for chunk in self._features(X).split(size)]


@lru_cache(maxsize=8)
def _untrained(  # noqa: PLR0917 - it is cached by position
    columns: int, kind: str, bases: int | None, ridge: float | None, seed: int, infer: bool = False
) -> Rows | Untrained:
    """A learner that holds nothing of a task, so that one serves them all."""
    regression = kind == "regressor"
    if bases is None:
        proposer = shipped_proposer() if infer else None
        return Rows(columns, regression=regression, generator=stream(seed, "bases"), ridge=ridge, proposer=proposer)
    return Untrained(columns, regression=regression, generator=stream(seed, "bases"), bases=bases, ridge=ridge)


def shipped_proposer() -> Proposer:
    """The network that comes with the package: it looks at rows and proposes kernels for them."""
    tensors, _ = read_tensors(SHIPPED / "rows" / "model.safetensors")
    network = Proposer(torch.Generator())
    load_weights(network, tensors, "the model of rows")
    return network


def read(path: Path) -> dict[str, Any]:
    """The JSON file of a saved estimator."""
    file = path / ESTIMATOR_FILE
    if not file.is_file():
        raise UserError(f"{path} is not a fitted model: it has no {ESTIMATOR_FILE}; give the --out of a 'metavrf fit'")
    values = read_json(check(file), "fit the model again") or {}
    check_shape(values, _SHAPE, file)
    if values["kind"] not in ("classifier", "regressor"):
        raise UserError(f"{file} is damaged (kind {values['kind']!r} is unknown): fit the model again")
    if values["kind"] == "classifier":
        check_shape(values, _CLASSIFIER, file)
    return values
