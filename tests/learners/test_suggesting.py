"""Which samples to label next: in closed form what adding them one by one gives, and better than chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from glyphs import glyph, name_of, refused
from metavrf import MetaVRFClassifier, MetaVRFRegressor


def test_a_batch_of_real_targets_is_where_a_gaussian_process_is_widest_given_those_before() -> None:
    random = np.random.default_rng(0)
    x, pool = random.normal(size=(12, 2)), random.normal(size=(40, 2))
    model = MetaVRFRegressor().fit(x, np.sin(2 * x[:, 0]) + x[:, 1])
    mixture: Any = model.predictor_
    heavy = mixture.log_weights.argmax()
    mixture.log_weights = mixture.log_weights[heavy].unsqueeze(0) * 0  # one kernel, of which the answer is known
    for name in ("solution", "root", "amplitude"):
        setattr(mixture, name, getattr(mixture, name)[heavy].unsqueeze(0))
    kernel = mixture.kernels = mixture.kernels.chosen(heavy.unsqueeze(0))
    mixture.index = heavy.unsqueeze(0) * 0
    noise = kernel.noise.item()

    def gram(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        import torch

        return kernel(torch.from_numpy(a), torch.from_numpy(b))[0][0].numpy()

    seen = x
    expected: list[int] = []
    for _ in range(4):
        inner = np.linalg.inv(gram(seen, seen) + noise * np.eye(len(seen)))
        side = gram(pool, seen)
        variance = gram(pool, pool).diagonal() - np.einsum("ij,jk,ik->i", side, inner, side)
        variance[expected] = -1
        expected.append(int(variance.argmax()))
        seen = np.concatenate([seen, pool[expected[-1:]]])
    assert model.suggest(pool, 4).tolist() == expected


def test_a_batch_does_not_ask_twice_for_the_same() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.normal(size=(10, 2)), random.normal(size=(10, 2)) + 3])
    model = MetaVRFClassifier().fit(x, np.repeat(["a", "b"], 10))
    distinct = np.array([[1.5, 1.5], [4.0, -1.0], [-1.0, 4.0], [0.0, 0.0], [3.0, 3.0]])
    pool = np.repeat(distinct, 20, axis=0)
    chosen = model.suggest(pool, 5)
    assert len(set(chosen.tolist())) == 5
    assert len(np.unique(pool[chosen[:2]], axis=0)) == 2
    assert (chosen < 60).all()  # where the classes meet
    assert np.array_equal(chosen, model.suggest(pool, 5))


def test_digits_are_learned_from_fewer_labels_than_of_random_ones() -> None:
    x, y = load_digits(return_X_y=True)
    reached: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(y))
        pool, test = order[:500], order[500:900]
        for suggested, scores in reached.items():
            labels = np.array([pool[y[pool] == label][0] for label in range(10)])
            for _ in range(6):
                rest = np.setdiff1d(pool, labels)
                model = MetaVRFClassifier().fit(x[labels], y[labels])
                more = (
                    model.suggest(x[rest], 5) if suggested else np.random.default_rng(seed).permutation(len(rest))[:5]
                )
                labels = np.concatenate([labels, rest[more]])
            scores.append(MetaVRFClassifier().fit(x[labels], y[labels]).score(x[test], y[test]))
    assert np.mean(reached[True]) > np.mean(reached[False]) + 0.02


def test_pictures_are_suggested_on_the_features_of_a_model() -> None:
    known = np.stack([glyph(number, drawer, 40) for number in range(3) for drawer in range(2)])
    model = MetaVRFClassifier("omniglot").fit(known, [name_of(number) for number in range(3) for _ in range(2)])
    pool = np.stack([glyph(0, drawer, 40) for drawer in range(2, 10)] + [glyph(7, 0, 40)])  # one of a new kind
    assert 8 in model.suggest(pool, 2)


@pytest.mark.parametrize("options", [{"bases": 32}, {"model": "sine"}])
def test_other_regressors_suggest_where_points_are_missing(options: dict[str, Any]) -> None:
    x = np.concatenate([np.linspace(-4, 0, 8), [4.5]])[:, None]
    model = MetaVRFRegressor(**options).fit(x, np.sin(x[:, 0]))
    pool = np.linspace(-4, 4.5, 18)[:, None]
    assert 0.5 < pool[model.suggest(pool, 1)[0], 0] < 4.5


def test_a_bad_number_is_refused_and_one_class_is_no_error() -> None:
    model = MetaVRFClassifier().fit([[0.0], [1.0]], ["a", "a"])
    assert model.suggest([[0.0], [5.0]], 1).shape == (1,)
    for number in (0, 3):
        with refused(f"n = {number}", "1 to 2"):
            model.suggest([[0.0], [5.0]], number)
