"""The estimators keep scikit-learn's promises, and answer as the learners do."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from metavrf import MetaVRFClassifier, MetaVRFRegressor


@parametrize_with_checks([MetaVRFClassifier(), MetaVRFRegressor()])
def test_scikit_learns_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)
