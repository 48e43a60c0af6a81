"""The network that proposes kernels for rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metavrf.nn.columns import OF_COLUMN, OF_TABLE, PROPOSALS, Proposer, described
from metavrf.randomness import stream


def table(rows: int = 12, columns: int = 4, outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(1, rows, size, generator=generator, dtype=torch.double) for size in (columns, outputs))
    z = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    return z, y - y.mean(1, keepdim=True)


@pytest.fixture(scope="module")
def network() -> Proposer:
    return Proposer(stream(0, "weights")).double()


def test_proposals_do_not_depend_on_the_order_of_rows(network: Proposer) -> None:
    z, y = table()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    for one, other in zip(network(z, y, classes=False), network(z[:, order], y[:, order], classes=False), strict=True):
        torch.testing.assert_close(one, other)


def test_proposals_follow_the_order_of_columns(network: Proposer) -> None:
    z, y = table()
    order = torch.tensor([2, 0, 3, 1])
    plain, turned = network(z, y, classes=False), network(z[..., order], y, classes=False)
    torch.testing.assert_close(plain.scale[..., order], turned.scale)
    torch.testing.assert_close(plain.noise, turned.noise)
    torch.testing.assert_close(plain.log_prior, turned.log_prior)


@pytest.mark.parametrize(("rows", "columns", "outputs"), [(2, 1, 1), (3, 50, 1), (40, 7, 10)])
def test_any_number_of_columns_has_proposals(network: Proposer, rows: int, columns: int, outputs: int) -> None:
    z, y = table(rows, columns, outputs)
    found = network(z, y, classes=outputs > 1)
    assert found.scale.shape == (1, PROPOSALS, columns)
    assert all(bool(value.isfinite().all()) for value in found)
    torch.testing.assert_close(found.log_prior.exp().sum(1), torch.ones(1).double())


def test_constant_and_repeated_columns_have_finite_statistics(network: Proposer) -> None:
    z, y = table()
    z = torch.cat([z, z[..., :1], torch.zeros_like(z[..., :1])], -1)
    columns, of_table = described(z, y, classes=False)
    assert columns.shape == (1, 6, OF_COLUMN)
    assert of_table.shape == (1, OF_TABLE)
    assert bool(columns.isfinite().all()) and bool(of_table.isfinite().all())
    torch.testing.assert_close(columns[:, 0], columns[:, 4])
    scale = network(z, y, classes=False).scale
    torch.testing.assert_close(scale[..., 0], scale[..., 4])


def test_the_slope_of_the_evidence_tells_a_column_that_matters() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 60, 5, generator=generator, dtype=torch.double)
    z = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    y = torch.sin(2 * z[..., 2:3])
    columns, _ = described(z, y - y.mean(1, keepdim=True), classes=False)
    assert columns[0, :, -1].argmax() == 2
