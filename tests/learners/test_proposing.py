"""Proposals in training and in use: the same mathematics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from metavrf import MetaVRFClassifier, MetaVRFRegressor
from metavrf.episodes import Episodes
from metavrf.estimators.base import shipped_proposer
from metavrf.kernels.rows import Kernels, Standardised
from metavrf.learners.proposing import judge, kernel, loss, prepared
from metavrf.learners.row_mixture import Targets
from metavrf.learners.rows import CANDIDATES, FAINT, Rows
from metavrf.nn.columns import PROPOSALS, Proposer
from metavrf.randomness import stream
from metavrf.tasks.synthetic import Size, tables

SIZES = [Size(14, 3, None), Size(14, 3, 3)]


def learner(columns: int, *, regression: bool) -> Rows:
    network = Proposer(stream(0, "weights"))
    return Rows(columns, regression=regression, generator=stream(0, "bases"), proposer=network)


@pytest.mark.parametrize("size", SIZES)
def test_training_weighs_proposals_as_use_does(size: Size) -> None:
    drawn = tables(size, 1, 5, stream(1, "train"))
    support = prepared(drawn.x, drawn.y, size.rows, size.classes)
    network = Proposer(stream(0, "weights")).double().requires_grad_(False)
    found = network(support.z, support.y, classes=size.classes is not None)
    x, y = drawn.x[0, : size.rows].double(), drawn.y[0, : size.rows]
    y = y.double().unsqueeze(-1) if size.classes is None else y
    targets = Targets.of(Episodes.of_support(x, y, size.classes))
    own = {"scale": found.scale[0], "wave": torch.zeros_like(found.scale[0])}
    family = Standardised.on(x, **own, linear=found.linear[0], noise=found.noise[0])
    torch.testing.assert_close(kernel(found, support.z, support.z)[0], family(x)[0])
    score = learner(size.columns, regression=size.classes is None).scores(Kernels([family]), targets)
    trained = judge(found, support).score[:, 0].view(-1, PROPOSALS).T
    weights, expected = trained.flatten().softmax(0), score.flatten().softmax(0)
    torch.testing.assert_close(weights, expected, rtol=2e-2, atol=1e-3)  # frequencies of classes are smoothed in use


def test_the_gradient_of_the_loss_is_the_finite_difference() -> None:
    drawn = tables(SIZES[0], 2, 5, stream(1, "train"))
    support = prepared(drawn.x, drawn.y, SIZES[0].rows, None)
    network = Proposer(stream(0, "weights")).double()
    loss(network, support).mean().backward()
    assert network.base.grad is not None
    expected, step = network.base.grad[2, 5].item(), 1e-5
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            network.base[2, 5] += sign * step
            values.append(loss(network, support).mean().item())
            network.base[2, 5] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_proposals_have_half_of_the_prior_beside_drawn_kernels(size: Size) -> None:
    drawn = tables(size, 1, 0, stream(1, "train"))
    x, y = drawn.x[0].double(), drawn.y[0]
    y = y.double().unsqueeze(-1) if size.classes is None else y
    rows = learner(size.columns, regression=size.classes is None)
    families, log_prior = rows.candidates(x, Targets.of(Episodes.of_support(x, y, size.classes)))
    count = CANDIDATES + (FAINT if size.classes is None else 0)
    assert len(families[0].noise) == count + PROPOSALS
    mass = log_prior[: count + PROPOSALS].exp()
    assert mass[:count].sum().item() == pytest.approx(mass[count:].sum().item())


def test_constant_columns_change_nothing_of_what_is_proposed() -> None:
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.normal(size=(15, 3)))
    targets = Targets.of(Episodes.of_support(x, x[:, :1].sin()))
    wide = torch.cat([x, torch.full((15, 1), 7.0).double()], 1)
    plain, more = learner(3, regression=True), learner(4, regression=True)
    one = plain.proposed(plain.families(x)[0], targets)
    other = more.proposed(more.families(wide)[0], targets)
    assert one is not None and other is not None
    torch.testing.assert_close(one.scale, other.scale[..., :3])
    assert not bool(other.scale[..., 3].any())
    assert more.proposed(more.families(torch.ones(15, 4).double())[0], targets) is None


@pytest.mark.parametrize("infer", [True, False])
def test_a_saved_estimator_answers_the_same(infer: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, new = random.normal(size=(2, 20, 3))
    regressor = MetaVRFRegressor(infer=infer).fit(x, x[:, 0])
    regressor.save(tmp_path / "real")
    again = MetaVRFRegressor.load(tmp_path / "real")
    assert again.infer is infer
    np.testing.assert_array_equal(again.predict(new), regressor.predict(new))
    classifier = MetaVRFClassifier(infer=infer).fit(x, x[:, 0] > 0)
    classifier.save(tmp_path / "classes")
    loaded = MetaVRFClassifier.load(tmp_path / "classes").predict_proba(new)
    np.testing.assert_array_equal(loaded, classifier.predict_proba(new))


def test_a_query_is_answered_alike_alone_and_among_others() -> None:
    random = np.random.default_rng(0)
    x, new = random.normal(size=(2, 20, 3))
    model = MetaVRFRegressor(infer=True).fit(x, x[:, 0] * x[:, 1])
    np.testing.assert_allclose(model.predict(new)[4:5], model.predict(new[4:5]), rtol=1e-10)


def test_constant_and_repeated_columns_and_integer_codes_have_finite_answers() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 3, size=(15, 2)).astype(float)
    x = np.concatenate([x, x[:, :1], np.full((15, 1), 3.0)], 1)
    assert np.isfinite(MetaVRFRegressor(infer=True).fit(x, x[:, 0]).predict(x)).all()
    assert np.isfinite(MetaVRFClassifier(infer=True).fit(x, x[:, 1]).predict_proba(x)).all()


def test_the_shipped_network_is_small_and_whole() -> None:
    network = shipped_proposer()
    assert all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values())
    assert sum(tensor.numel() for tensor in network.parameters()) * 2 < 5e6
