from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metavrf.errors import UserError
from metavrf.kernels import ridge

Arrays = tuple[NDArray[np.float64], NDArray[np.float64]]


def problem(samples: int, bases: int, outputs: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Support features, targets and query features of 3 tasks x 2 draws, in double precision."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 3, samples, bases), (2, 3, samples, outputs), (2, 3, 7, bases))
    phi, targets, query = (torch.randn(s, generator=generator, dtype=torch.double) for s in shapes)
    return phi / math.sqrt(bases), targets, query / math.sqrt(bases)


def gaussian_process(phi: Tensor, targets: Tensor, query: Tensor, lam: float) -> Arrays:
    """Mean and variance by the textbook formulas, with explicit inverses, one task."""
    support, y, q = phi.numpy(), targets.numpy(), query.numpy()
    inverse = np.linalg.inv(support @ support.T + lam * np.eye(len(support)))
    cross = support @ q.T
    return cross.T @ inverse @ y, np.diag(q @ q.T - cross.T @ inverse @ cross)


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_mean_and_variance_are_the_gaussian_process(form: str, lam: float) -> None:
    phi, targets, query = problem(samples=5, bases=9)
    mean, variance = ridge.fit(phi, targets, lam, form).posterior(query)
    assert mean.shape == (2, 3, 7, 2)
    assert variance.shape == (2, 3, 7)
    for index in np.ndindex(2, 3):
        expected_mean, expected_variance = gaussian_process(phi[index], targets[index], query[index], lam)
        np.testing.assert_allclose(mean[index], expected_mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(variance[index], expected_variance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_energy_is_the_squared_norm_of_the_data(form: str) -> None:
    phi, targets, _ = problem(samples=5, bases=9)
    energy = ridge.fit(phi, targets, 0.2, form).energy
    for index in np.ndindex(2, 3):
        support, y = phi[index].numpy(), targets[index].numpy()
        expected = np.diag(y.T @ np.linalg.inv(support @ support.T + 0.2 * np.eye(5)) @ y)
        np.testing.assert_allclose(energy[index], expected, rtol=1e-9)


@pytest.mark.parametrize(("samples", "bases"), [(4, 11), (11, 4), (6, 6), (1, 3)])
@pytest.mark.parametrize("lam", [1e-4, 0.1, 5.0])
def test_dual_and_primal_forms_agree(samples: int, bases: int, lam: float) -> None:
    phi, targets, query = problem(samples, bases)
    dual, primal = (ridge.fit(phi, targets, lam, form) for form in ("dual", "primal"))
    for a, b in zip((*dual.posterior(query), dual.energy), (*primal.posterior(query), primal.energy), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_predict_is_the_posterior_mean(form: str) -> None:
    phi, targets, query = problem(samples=5, bases=9)
    fitted = ridge.fit(phi, targets, 0.1, form)
    assert torch.equal(fitted.predict(query), fitted.posterior(query)[0])


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_variance_of_features_of_norm_one_needs_no_norm(form: str) -> None:
    phi, targets, query = problem(samples=5, bases=9)
    phi, query = (v / v.norm(dim=-1, keepdim=True) for v in (phi, query))
    fitted = ridge.fit(phi, targets, 0.1, form)
    torch.testing.assert_close(fitted.posterior(query, unit_norm=True)[1], fitted.posterior(query)[1])


@pytest.mark.parametrize(("samples", "bases", "size"), [(3, 10, 3), (10, 3, 3), (4, 4, 4)])
def test_auto_solves_the_smaller_system(samples: int, bases: int, size: int) -> None:
    phi, targets, _ = problem(samples, bases)
    fitted = ridge.fit(phi, targets, 0.1)
    assert fitted.factor.shape[-2:] == (size, size)
    assert (fitted.support is None) == (bases < samples)


def test_a_tiny_penalty_interpolates_and_a_huge_one_predicts_zero() -> None:
    phi, targets, _ = problem(samples=5, bases=9)
    mean, variance = ridge.fit(phi, targets, 1e-10).posterior(phi)
    torch.testing.assert_close(mean, targets, rtol=0, atol=1e-6)
    assert variance.abs().max() < 1e-8
    assert ridge.fit(phi, targets, 1e10).predict(phi).abs().max() < 1e-8


def test_variance_is_never_negative_in_single_precision() -> None:
    phi, targets, _ = problem(samples=8, bases=20)
    single = phi.float()
    _, variance = ridge.fit(single, targets.float(), 1e-6).posterior(single)
    assert variance.min() >= 0
    assert variance.max() < 1e-4


@pytest.mark.parametrize(("lam", "quoted"), [(0.0, "0"), (-0.25, "-0.25"), (math.nan, "nan")])
def test_a_penalty_that_is_not_positive_is_refused_and_quoted(lam: float, quoted: str) -> None:
    phi, targets, _ = problem(samples=3, bases=4)
    with pytest.raises(UserError, match=f"lambda = {quoted}$"):
        ridge.fit(phi, targets, lam)


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("samples", [1, 5, 60])
@pytest.mark.parametrize("where", ["first", "last"])
def test_features_that_are_not_a_number_are_refused(form: str, samples: int, where: str) -> None:
    phi, targets, _ = problem(samples, bases=8)
    phi[-1, -1, 0 if where == "first" else -1, 0 if where == "first" else -1] = math.nan
    with pytest.raises(UserError, match="NaN"):
        ridge.fit(phi, targets, 0.1, form)


def test_an_unknown_form_is_refused_and_quoted() -> None:
    phi, targets, _ = problem(samples=3, bases=4)
    with pytest.raises(UserError, match="form='cubic'"):
        ridge.fit(phi, targets, 0.1, "cubic")


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_gradients_of_fit_and_posterior_match_finite_differences(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 4), (2, 3, 1), (2, 2, 4), ())
    inputs = tuple(torch.rand(s, generator=generator, dtype=torch.double).requires_grad_() for s in shapes)

    def solve(phi: Tensor, targets: Tensor, query: Tensor, log_lambda: Tensor) -> tuple[Tensor, ...]:
        fitted = ridge.fit(phi, targets, log_lambda.exp(), form)
        return (*fitted.posterior(query), fitted.energy)

    assert torch.autograd.gradcheck(solve, inputs)


@pytest.mark.parametrize("lam", [1e-6, 0.1])
def test_solving_in_one_go_is_the_dual_form(lam: float) -> None:
    phi, targets, query = problem(samples=5, bases=9)
    fitted = ridge.fit(phi, targets, lam, "dual")
    kernel = ridge.kernel_of(torch.cat([phi, query], dim=-2), 5)
    torch.testing.assert_close(kernel, torch.cat([phi @ phi.mT, phi @ query.mT], dim=-1))
    solved = ridge.solve(kernel, targets, torch.tensor(lam, dtype=torch.double), query.square().sum(-1))
    for ours, expected in zip(solved[:3], (*fitted.posterior(query), fitted.energy), strict=True):
        torch.testing.assert_close(ours, expected)
    assert solved.samples == 5


def test_the_hand_written_gradient_matches_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 5, 4), (3, 3, 2), (), (2, 3, 2))
    phi, targets, log_lambda, prior = (
        torch.rand(s, generator=generator, dtype=torch.double).requires_grad_() for s in shapes
    )

    def solve(phi: Tensor, targets: Tensor, log_lambda: Tensor, prior: Tensor) -> tuple[Tensor, ...]:
        return parts(ridge.solve(ridge.kernel_of(phi, 3), targets, log_lambda.exp(), prior + 2))

    assert torch.autograd.gradcheck(solve, (phi, targets, log_lambda, prior))


@pytest.mark.parametrize("lam", [1e-8, 0.1])
def test_the_hand_written_gradient_is_that_of_the_plain_form(lam: float) -> None:
    phi, targets, query = (tensor.requires_grad_() for tensor in problem(samples=5, bases=9))
    weight = torch.tensor(lam, dtype=torch.double, requires_grad=True)
    inputs = (phi, targets, query, weight)
    fitted = ridge.fit(phi, targets, weight, "dual")
    of_factor = 2 * fitted.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    plain = (*fitted.posterior(query), fitted.energy, of_factor)
    solved = ridge.solve(ridge.kernel_of(torch.cat([phi, query], dim=-2), 5), targets, weight, query.square().sum(-1))
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(p.shape, generator=generator, dtype=torch.double) for p in plain]
    gradients = (torch.autograd.grad(outputs, inputs, weights) for outputs in (plain, parts(solved)))
    for expected, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_explicit_weights_and_root_predict_without_a_solve(form: str) -> None:
    phi, targets, query = problem(samples=5, bases=9)
    fitted = ridge.fit(phi, targets, 0.3, form)
    mean, variance = fitted.posterior(query)
    torch.testing.assert_close(query @ fitted.weights, mean)
    power = (query @ fitted.root.mT).square().sum(-1)
    torch.testing.assert_close(power if form == "primal" else query.square().sum(-1) - power, variance)


@pytest.mark.parametrize(("samples", "bases"), [(5, 9), (9, 5)])
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_leaving_one_out_in_closed_form_is_fitting_without_each_sample(form: str, samples: int, bases: int) -> None:
    phi, targets, _ = problem(samples, bases)
    fit, variance = ridge.fit(phi, targets, 0.2, form).leave_one_out(phi, targets)
    for left_out in range(samples):
        others = [row for row in range(samples) if row != left_out]
        again = ridge.fit(phi[..., others, :], targets[..., others, :], 0.2)
        mean, expected = again.posterior(phi[..., left_out : left_out + 1, :])
        torch.testing.assert_close(fit[..., left_out, :], mean.squeeze(-2))
        torch.testing.assert_close(variance[..., left_out], expected.squeeze(-1))


@pytest.mark.parametrize("form", ["dual", "primal"])
def test_problems_may_have_penalties_of_their_own_or_try_several(form: str) -> None:
    phi, targets, query = problem(samples=5, bases=9)
    own = torch.tensor([0.1, 1.0, 10.0], dtype=torch.double)  # of the three tasks
    mixed = ridge.fit(phi, targets, own, form)
    tried = ridge.fit(phi, targets, own[:, None, None], form)
    for number, lam in enumerate(own.tolist()):
        alone = ridge.fit(phi, targets, lam, form)
        for ours, expected in zip(tried.posterior(query), alone.posterior(query), strict=True):
            torch.testing.assert_close(ours[number], expected)
        for ours, expected in zip(mixed.posterior(query), alone.posterior(query), strict=True):
            torch.testing.assert_close(ours[:, number], expected[:, number])
        torch.testing.assert_close(mixed.energy[:, number], alone.energy[:, number])
        torch.testing.assert_close(tried.leave_one_out(phi, targets)[0][number], alone.leave_one_out(phi, targets)[0])


# Many kernels: one penalty each, and their evidence


def parts(solved: ridge.Fit, count: int = 4) -> tuple[Tensor, ...]:
    """Mean, variance, energy and log determinant, or the first of them."""
    assert solved.log_det is not None
    return (solved.mean, solved.variance, solved.energy, solved.log_det)[:count]


def gram_problem(samples: int = 4, queries: int = 3, outputs: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """K | K̃ of 5 kernels x 3 tasks, the tasks' targets, and a penalty of each kernel and task."""
    generator = torch.Generator().manual_seed(5)
    phi = torch.randn(5, 3, samples + queries, 12, generator=generator, dtype=torch.double) / math.sqrt(12)
    targets = torch.randn(3, samples, outputs, generator=generator, dtype=torch.double)
    return ridge.kernel_of(phi, samples), targets, torch.logspace(-3, 0.5, 15, dtype=torch.double).reshape(5, 3)


def test_evidence_is_the_log_density_of_a_multivariate_normal() -> None:
    kernel, targets, lam = gram_problem()
    amplitude = torch.linspace(0.2, 3, 15, dtype=torch.double).reshape(5, 3)
    evidence = ridge.solve(kernel, targets, lam).log_evidence(amplitude)
    assert evidence.shape == (5, 3)
    covariance = amplitude[..., None, None] * (kernel[..., :4] + lam[..., None, None] * torch.eye(4))
    normal = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.double), covariance)
    torch.testing.assert_close(evidence, sum(normal.log_prob(column) for column in targets.unbind(-1)))


def test_penalties_of_kernels_and_tasks_are_each_their_own() -> None:
    kernel, targets, lam = gram_problem()
    together = ridge.solve(kernel, targets, lam)
    for number, task in np.ndindex(5, 3):
        alone = ridge.solve(kernel[number, task], targets[task], lam[number, task])
        for ours, expected in zip(parts(together), parts(alone), strict=True):
            torch.testing.assert_close(ours[number, task], expected)


@pytest.mark.parametrize("evidence", [True, False])
def test_the_gradient_with_many_penalties_is_the_plain_forms_and_that_of_finite_differences(evidence: bool) -> None:
    kernel, targets, lam = gram_problem()
    inputs = tuple(tensor.requires_grad_() for tensor in (kernel, targets, lam))
    outputs = 4 if evidence else 3  # the determinant is asked for, or not
    ours, plain = (parts(solve(*inputs), outputs) for solve in (ridge.solve, ridge.solve_plainly))
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(p.shape, generator=generator, dtype=torch.double) for p in plain]
    for value, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(value, expected)
    gradients = [list(torch.autograd.grad(values, inputs, weights)) for values in (ours, plain)]
    for grads in gradients:  # only the symmetric part is of a kernel: the two forms may share the rest out differently
        gram, cross = grads[0].split([4, 3], dim=-1)
        grads[0] = torch.cat([gram + gram.mT, cross], dim=-1)
    for value, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-9)

    def of_features(phi: Tensor, targets: Tensor, lam: Tensor) -> tuple[Tensor, ...]:
        return parts(ridge.solve(ridge.kernel_of(phi, 2), targets, lam.exp()), outputs)

    small = tuple(
        torch.rand(shape, generator=generator, dtype=torch.double).requires_grad_()
        for shape in ((2, 2, 4, 5), (2, 2, 2), (2, 2))
    )
    assert torch.autograd.gradcheck(of_features, small)


def test_leaving_one_out_of_a_kernel_is_solving_without_each_sample() -> None:
    kernel, targets, lam = gram_problem(samples=6, queries=0)
    fit = ridge.leave_one_out(kernel, targets, lam)
    assert fit.shape == (5, 3, 6, 2)
    for left_out in range(6):
        others = [row for row in range(6) if row != left_out]
        rest = kernel[..., others, :][..., [*others, left_out]]
        mean = ridge.solve(rest, targets[:, others], lam).mean
        torch.testing.assert_close(fit[..., left_out, :], mean.squeeze(-2))


def test_factors_predict_without_a_solve() -> None:
    kernel, targets, lam = gram_problem()
    gram, cross = kernel.split([4, 3], dim=-1)
    solution, root = ridge.factors(gram, targets, lam)
    solved = ridge.solve(kernel, targets, lam)
    torch.testing.assert_close(cross.mT @ solution, solved.mean)
    torch.testing.assert_close((1 - (root @ cross).square().sum(-2)).clamp_min(0), solved.variance)
