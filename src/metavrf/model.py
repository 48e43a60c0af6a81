"""A trained model, opened once: each of its files is read once, the large ones when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from metavrf.config import Config
from metavrf.episodes import Episodes
from metavrf.errors import UserError
from metavrf.files import PathLike, load_weights
from metavrf.learners.base import Learner
from metavrf.learners.kernel import KernelLearner
from metavrf.learners.measuring import IMAGES_AT_ONCE, few_threads
from metavrf.learners.stream import Stream
from metavrf.learners.units import InUnits
from metavrf.pictures import Picture, as_image, in_parallel, opened
from metavrf.prediction import Prediction
from metavrf.protocol import INDUCTIVE, Protocol
from metavrf.randomness import stream
from metavrf.runs.directory import SHIPPED, Run
from metavrf.spec import TaskSpec
from metavrf.tasks.curves import answered, as_table
from metavrf.tasks.images import Preprocessing
from metavrf.tasks.source import preprocessing


class TrainedModel:
    """A learner, and all that was kept of how it was trained and of what it must be given.

    Attributes:
        run: the folder it is in.
        config: its settings.
        spec: what its tasks look like.
        learner: the best model of the run, in evaluation mode.
    """

    def __init__(self, run: Run, config: Config[Any], spec: TaskSpec, learner: Learner) -> None:
        self.run, self.config, self.spec, self.learner = run, config, spec, learner

    @property
    def name(self) -> str:
        """As a user knows it."""
        return str(self.run.path.name)

    @property
    def called(self) -> str:
        """As a user names it in a command: a model of the package by its name, any other by its path."""
        return self.name if self.run.path.parent == SHIPPED else str(self.run.path)

    @cached_property
    def card(self) -> dict[str, Any] | None:
        """What a packed model was tested to do, or None if it was not packed."""
        return self.run.card()

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """What came out of the training, or None while it has not ended."""
        return self.run.result()

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        """Of pictures, where the learner embeds them itself."""
        if len(self.spec.inputs) != 3:
            return None
        how = preprocessing(self.config.task, self.config.data)
        if how.shape != tuple(self.spec.inputs):
            raise UserError(
                f"{self.run.path} was trained on pictures of another size than its settings say: {self.spec.inputs}"
            )
        return how

    def predict(self, episodes: Episodes, *, protocol: Protocol = INDUCTIVE, memory: Any = None) -> Prediction:
        """Answer the queries of tasks, each from its own support; ``memory`` is that of tasks before these."""
        self.learner.check_protocol(protocol)
        with few_threads(self.learner):
            return self.learner.predict(episodes, protocol=protocol, memory=memory)

    def predict_curves(self, source: Any) -> Any:
        """Answer for the groups of a table, each from its own rows: those with targets are the support.

        ``source`` is a CSV or Parquet file, or a pandas or polars frame, with the columns that the run was trained on.
        Returns a pyarrow table of the rows whose targets are empty: group, inputs, and for each target its mean,
        ``_std`` and the ends of the 90 % band, ``_low`` and ``_high``. ``.to_pandas()`` makes a frame of it.
        """
        if self.spec.columns is None:
            raise UserError(f"{self.name} was not trained on curves of a table")
        return answered(as_table(source), self.spec.columns, self.predict)

    def adapt(self, support: Episodes, *, embedded: bool = False) -> nn.Module:
        """A module that answers for one task's queries: ``x [N, ...]`` to probabilities, or to mean and deviation.

        ``embedded`` says that the support, and what the module is asked, are features already.
        """
        return self.learner.adapted(support, embedded=embedded)

    def stream(self) -> Stream:
        """Related tasks one after the other, each of which may look back at the supports of those before it."""
        return self.learner.stream()

    @property
    def columns(self) -> tuple[int, ...]:
        """Widths of a table that it takes: its inputs, or features as it makes them itself."""
        inputs = self.spec.inputs
        return inputs if len(inputs) == 1 else (int(getattr(self.learner.embedding, "features", 0)),)

    def of_table(self, table: NDArray[Any]) -> Tensor:
        """Features ``[N, d]`` of rows of numbers."""
        if table.shape[1] not in self.columns:
            raise UserError(
                f"X has {table.shape[1]} columns, but {self.name} takes {self.columns[0]}"
                + ("" if len(self.spec.inputs) == 1 else ", the features of its embedding; or pictures")
            )
        rows = torch.tensor(table, dtype=torch.float32)
        return self.embed(rows) if len(self.spec.inputs) == 1 else rows

    def of_pictures(self, pictures: Sequence[Picture]) -> Tensor:
        """Features ``[N, d]`` of pictures."""
        if self.preprocessing is not None:
            return self.embed(torch.from_numpy(np.stack(in_parallel(self.preprocessed, pictures))))
        if not self.spec.embedder:
            raise UserError(f"{self.name} takes {' x '.join(map(str, self.columns))} numbers per sample, not pictures")
        from metavrf.networks import BATCH, picture_features

        chunks = (pictures[start : start + BATCH] for start in range(0, len(pictures), BATCH))
        features = [picture_features(self.spec.embedder, in_parallel(opened, chunk)) for chunk in chunks]
        return self.embed(torch.cat(features))

    def preprocessed(self, picture: Picture) -> NDArray[np.uint8]:
        """One picture as the embedding was trained on."""
        assert self.preprocessing is not None
        if isinstance(picture, str | os.PathLike):
            return self.preprocessing.decode(Path(picture), str(picture))
        return self.preprocessing.pixels(as_image(picture))

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Tensor:
        """Features by the learner's own embedding."""
        if not self.learner.embeds_alone:
            raise UserError(
                f"{self.run.path} changes its network for each task ({self.config.learner}): it has no features to keep"
            )
        return torch.cat([self.learner.features_of(chunk) for chunk in inputs.split(IMAGES_AT_ONCE)])


def load(
    path: PathLike, *, bases: int | None = None, samples: int | None = None, draw: int | None = None
) -> TrainedModel:
    """The best model of a run, with all it must be given.

    Args:
        path: the run directory; or a model that comes with the package ("omniglot", "sine", "photos"); or one on the
            Hugging Face hub, "hf://owner/name" (needs the extra 'hub').
        bases: use this many random features D instead of the saved ones.
        samples: use this many posterior samples L.
        draw: draw the bases anew from this seed. Without any of the three the saved bases are used, and the
            model predicts the same to the bit as when it was saved.
    """
    run = Run.open(path)
    config, spec = run.config(), run.spec()
    learner = config.build(spec)
    tensors, _ = run.load_model()
    load_weights(learner, tensors, str(run.model_file))
    if bases is not None or samples is not None or draw is not None:
        if not isinstance(learner, KernelLearner):
            raise UserError(f"{run.path} has no random bases to draw anew")
        if draw is not None and draw < 0:
            raise UserError(f"{draw=} must not be negative")
        learner.redraw(stream(draw or 0, "bases"), bases, samples)
    learner = learner.eval().requires_grad_(False)
    return TrainedModel(run, config, spec, learner if spec.columns is None else InUnits(learner, spec.columns))


def load_once(path: PathLike, bases: int | None = None, draw: int | None = None) -> TrainedModel:
    """As :func:`load`, but the same object as long as its file is the same."""
    run = Run.open(path)
    stamp = run.model_file.stat().st_mtime_ns if run.model_file.exists() else 0
    return _loaded(str(run.path), stamp, bases, draw)


@lru_cache(maxsize=4)
def _loaded(path: str, _stamp: int, bases: int | None, draw: int | None) -> TrainedModel:
    return load(path, bases=bases, draw=draw)
