"""Gradients of tensors that are read in pieces: joined from the gradients of the pieces."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.passes.dead_code import RemoveDeadCode
from staticrt.passes.join_gradients import JoinGradients

aten = torch.ops.aten
SIZES = [4, 3, 5]


def select(gradient, index, dim=0):
    return aten.select_backward(gradient, SIZES, dim, index)


def slice_(gradient, first, end, dim=0, step=1):
    return aten.slice_backward(gradient, SIZES, dim, first, end, step)


def packed(g):
    return select(g[3], 3) + select(g[2], 2) + select(g[1], 1) + select(g[0], -4)


def packed_to_the_right(g):
    return select(g[3], 3) + (select(g[2], 2) + (select(g[1], 1) + select(g[0], 0)))


def beside_another(g):
    return select(g[3], 3) + g.sin() + select(g[2], 2) + (select(g[1], 1) + select(g[0], 0))


def twice_read(g):
    return select(g[3], 3) + select(g[0], 3) + select(g[2], 2) + select(g[1], 1) + select(g[0], 0)


def with_gaps(g):
    return select(g[3], 2) + select(g[2], 0)


def slices(g):
    return slice_(g[1:], 1, 2**63 - 1) + slice_(g[:1], 0, 1)


def slices_with_gaps(g):
    return slice_(g[:2], -2, 4) + select(g[0], 0)


def another_dim(g):
    return select(g[:, 2], 2, -2) + select(g[:, 1], 1, -2) + select(g[:, 0], 0, -2)


def doubled(g):
    term = select(g[0], 0)
    return term + term + select(g[1], 1)


@pytest.mark.parametrize(
    "model",
    [
        packed,
        packed_to_the_right,
        beside_another,
        twice_read,
        with_gaps,
        slices,
        slices_with_gaps,
        another_dim,
        doubled,
    ],
)
def test_pieces_are_joined(trace, model):
    inputs = [torch.randn(SIZES)]
    graph = trace(model, inputs)
    assert graph.run(JoinGradients(), inputs).count == 1
    RemoveDeadCode()(graph.gm)
    assert graph.count(aten.select_backward.default) == graph.count(aten.slice_backward.default) == 0
    assert graph.count(aten.stack.default) + graph.count(aten.cat.default) == 1


def overlapping(g):
    return slice_(g[:3], 0, 3) + slice_(g[:3], 1, 4)


def with_steps(g):
    return slice_(g[:2], 0, 4, step=2) + slice_(g[:2], 1, 4, step=2)


def of_one_piece(g):
    return select(g[0], 1) + select(g[1], 1)


def read_elsewhere(g):
    first, second = select(g[0], 0), select(g[1], 1)
    return first + second, first, second


def scaled(g):
    return torch.add(select(g[0], 0), select(g[1], 1), alpha=2)


@pytest.mark.parametrize("model", [overlapping, with_steps, of_one_piece, read_elsewhere, scaled])
def test_other_sums_stay(trace, model):
    inputs = [torch.randn(SIZES)]
    assert trace(model, inputs).run(JoinGradients(), inputs).count == 0


def test_half_precision_is_left_alone(trace):
    inputs = [torch.randn(SIZES, dtype=torch.bfloat16)]
    assert trace(packed, inputs).run(JoinGradients(), inputs).count == 0


class Packed(nn.Module):
    """Attention with packed queries, keys and values, and a loop over time steps."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cell = nn.Linear(8, 24), nn.GRUCell(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 8)).permute(2, 0, 1, 3)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        h = mixed[:, 0]
        for t in range(1, mixed.shape[1] - 1):
            h = self.cell(mixed[:, t], h)
        return h


def test_a_model_that_reads_pieces_trains_as_in_eager():
    torch.manual_seed(0)
    model = Packed().double()
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    for batch in (3, 3, 5, 2):
        x = torch.randn(batch, 6, 8).double()
        for run in (compiled, eager):
            run(x).square().sum().backward()
    assert not compiled.explain().eager
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])
