import pytest
import torch

from staticrt.passes.canonical_views import CanonicalViews
from staticrt.passes.dead_code import RemoveDeadCode
from staticrt.passes.fuse_attention import FuseAttention

SDPA = torch.ops.aten.scaled_dot_product_attention.default


def inputs(queries=5, keys=7):
    return [torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 4)]


def scaled(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.5).softmax(-1) @ v + 1


def divided(q, k, v):
    return (torch.matmul(q, k.permute(0, 1, 3, 2)) / 2.0).softmax(dim=3) @ v + 1


def unscaled(q, k, v):
    return (q @ k.transpose(2, 3)).softmax(-1) @ v + 1


@pytest.mark.parametrize("function", [scaled, divided, unscaled])
def test_written_out_attention_becomes_one_call(capture, function):
    graph = capture(function, inputs())
    assert graph.run(FuseAttention(), inputs()).count == 1
    RemoveDeadCode()(graph.gm)
    assert graph.targets() == [str(SDPA), "aten.add.Tensor"]


def test_symbolic_lengths(capture):
    length = torch.export.Dim("length", min=3)
    spec = ({2: length}, {2: length}, {2: length})
    graph = capture(scaled, inputs(5, 5), {"args": spec})
    assert graph.run(FuseAttention(), inputs(9, 9)).count == 1


def masked(q, k, v):
    scores = (q @ k.transpose(-1, -2)) * 0.5
    return scores.masked_fill(torch.ones(5, 7).triu(1).bool(), float("-inf")).softmax(-1) @ v


def returns_weights(q, k, v):
    weights = ((q @ k.transpose(-1, -2)) * 0.5).softmax(-1)
    return weights @ v, weights


def over_queries(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.5).softmax(-2) @ v


def no_transpose(q, k, v):
    return (q @ k.view(2, 3, 4, 7)).softmax(-1) @ v


def other_dtype(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1, dtype=torch.float64) @ v.double()


def tensor_scale(q, k, v):
    return ((q @ k.transpose(-1, -2)) * q.sum()).softmax(-1) @ v


def shared_heads(q, k, v):
    return (q @ k[:, :1].transpose(-1, -2)).softmax(-1) @ v[:, :1]


@pytest.mark.parametrize(
    "function",
    [masked, returns_weights, over_queries, no_transpose, other_dtype, tensor_scale, shared_heads],
)
def test_other_calls_stay(capture, function):
    graph = capture(function, inputs())
    graph.run(CanonicalViews())
    assert not graph.run(FuseAttention()).changed
