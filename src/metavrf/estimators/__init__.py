"""scikit-learn estimators: ``fit`` conditions on a support set in one forward pass, no gradient step is taken.

>>> from metavrf import MetaVRFClassifier
>>> glyphs = MetaVRFClassifier.from_pretrained("omniglot")      # pictures of drawn characters
>>> glyphs.fit(["a1.png", "b1.png"], ["a", "b"])                # doctest: +SKIP
>>> glyphs.partial_fit(["c1.png"], ["c"])                       # doctest: +SKIP

Without a model they take rows of numbers: a mixture of many kernels, weighted by how well each explains the samples.
"""

from __future__ import annotations

from pathlib import Path

from metavrf.estimators.base import read
from metavrf.estimators.classifier import MetaVRFClassifier
from metavrf.estimators.regressor import MetaVRFRegressor
from metavrf.files import PathLike

__all__ = ["MetaVRFClassifier", "MetaVRFRegressor", "load"]


def load(folder: PathLike) -> MetaVRFClassifier | MetaVRFRegressor:
    """The saved estimator of a folder, whichever it is."""
    kinds = {cls.kind: cls for cls in (MetaVRFClassifier, MetaVRFRegressor)}
    return kinds[read(Path(folder))["kind"]].load(folder)
