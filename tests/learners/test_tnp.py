"""Transformer neural processes against PyTorch's own transformer under the authors' mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from metavrf.errors import UserError
from metavrf.learners.tnp import TNP, TNPSettings, points
from metavrf.nn.mlp import Raw
from metavrf.randomness import stream
from metavrf.spec import TaskSpec
from metavrf.tasks.functions import family
from ready_tasks import curves


def tnp(inputs: int = 2, outputs: int = 2) -> TNP:
    torch.manual_seed(1)
    settings = TNPSettings(width=12, heads=3, layers=2, hidden=10, least_std=0.05)
    return TNP(Raw(inputs), TaskSpec((inputs,), outputs), settings)


@torch.no_grad()
def masked_transformer(learner: TNP, tokens: torch.Tensor, samples: int) -> torch.Tensor:
    """All tokens through PyTorch's layers of the same weights; no token may look at a query."""
    mask = torch.zeros(tokens.shape[1], tokens.shape[1])
    mask[:, samples:] = -torch.inf
    for own in learner.layers:
        layer = nn.TransformerEncoderLayer(12, 3, 10, dropout=0.0, batch_first=True)
        layer.self_attn.in_proj_weight.copy_(torch.cat([own.query.weight, own.key_value.weight]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([own.query.bias, own.key_value.bias]))
        layer.self_attn.out_proj.load_state_dict(own.joined.state_dict())
        layer.linear1.load_state_dict(own.network[0][0].state_dict())
        layer.linear2.load_state_dict(own.network[1].state_dict())
        layer.norm1.load_state_dict(own.norms[0].state_dict())
        layer.norm2.load_state_dict(own.norms[1].state_dict())
        tokens = layer(tokens, src_mask=mask)
    return tokens


def test_it_is_a_transformer_whose_mask_hides_the_queries() -> None:
    learner, episodes = tnp(), curves()
    tokens = masked_transformer(learner, learner.token(points(episodes)), 4)
    mean, s = learner.last(tokens[:, 4:]).chunk(2, dim=-1)
    found = learner.predict(episodes)
    torch.testing.assert_close(found.mean, mean, rtol=1e-4, atol=1e-5)
    assert found.std is not None
    torch.testing.assert_close(found.std, 0.05 + 0.95 * nn.functional.softplus(s), rtol=1e-4, atol=1e-5)
    assert mean.std() > 0.01


def test_queries_do_not_see_each_other() -> None:
    learner, episodes = tnp(), curves(query=6)
    expected = learner.predict(episodes).mean
    others = torch.randn_like(episodes.query_x)
    others[:, 2] = episodes.query_x[:, 2]
    torch.testing.assert_close(learner.predict(episodes.asking(others)).mean[:, 2], expected[:, 2])
    torch.testing.assert_close(learner.predict(episodes.asking(others[:, 2:3])).mean, expected[:, 2:3])
    episodes.query_x.requires_grad_()
    learner(episodes).mean[:, 2].sum().backward()
    assert episodes.query_x.grad is not None
    assert (episodes.query_x.grad.abs().sum((0, 2)) > 0).tolist() == [False, False, True, False, False, False]


def test_the_order_of_the_support_changes_nothing() -> None:
    learner, episodes = tnp(), curves(shot=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = replace(episodes, support_x=episodes.support_x[:, order], support_y=episodes.support_y[:, order])
    torch.testing.assert_close(learner.predict(shuffled).mean, learner.predict(episodes).mean)
    exchanged = replace(episodes, support_y=episodes.support_y[:, order])  # but whose target it is matters
    assert (learner.predict(exchanged).mean - learner.predict(episodes).mean).abs().max() > 1e-3


def test_a_point_is_its_input_its_target_and_whether_it_is_asked() -> None:
    episodes = curves(tasks=1, shot=1, query=1)
    (support, query), (x, y) = points(episodes)[0], (episodes.support_x[0, 0], episodes.support_y[0, 0])
    assert support.tolist() == [*x.tolist(), *y.tolist(), 0]
    assert query.tolist() == [*episodes.query_x[0, 0].tolist(), 0, 0, 1]


def test_sizes_may_change_from_step_to_step() -> None:
    learner = tnp(1, 1)
    groups = family("gp-rbf").sample_groups(10, stream(0, "train"))
    assert len({group.support_x.shape[1] for group in groups}) > 1
    for group in groups:
        assert group.query_y is not None
        assert learner(group).mean.shape == group.query_y.shape


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="heads = 5 do not divide the width = 12"):
        TNP(Raw(1), TaskSpec(), TNPSettings(width=12, heads=5))
