"""What is left of a backward graph where some incoming gradients are undefined."""

import torch
from torch import fx

from staticrt.training.undefined import without_gradients
from tests.support.compilers import each_compiler_for_gradients

aten = torch.ops.aten


def _backward():
    """saved * gradient 1 - saved * gradient 2, and its second summand."""
    graph = fx.Graph()
    saved, one, two = (graph.placeholder(name) for name in ("saved", "tangents_1", "tangents_2"))
    left = graph.call_function(aten.mul.Tensor, (saved, one))
    right = graph.call_function(aten.neg.default, (graph.call_function(aten.mul.Tensor, (saved, two)),))
    graph.output((graph.call_function(aten.add.Tensor, (left, right)), right))
    for node in graph.nodes:
        if node.op != "output":
            node.meta["val"] = torch.empty(3)
    return fx.GraphModule({}, graph)


def _left(undefined):
    graph = _backward()
    without_gradients(graph, undefined)
    return [node.name for node in graph.graph.nodes if node.op == "call_function"], graph


def test_sums_lose_what_is_zero():
    names, graph = _left([2])
    assert names == ["mul_tensor"]
    saved, gradient = torch.randn(3), torch.randn(3)
    total, other = graph(saved, gradient, None)
    torch.testing.assert_close(total, saved * gradient)
    assert other is None


def test_the_other_summand_alone():
    names, graph = _left([1])
    assert names == ["mul_tensor_1", "neg_default"]
    saved, gradient = torch.randn(3), torch.randn(3)
    for result in graph(saved, None, gradient):
        torch.testing.assert_close(result, -saved * gradient)


def test_nothing_is_undefined():
    assert len(_left([])[0]) == 4


def _doubled(x):
    y = x * 1
    return y, torch.cat([y, y], 1)


@each_compiler_for_gradients
def test_sizes_that_only_gradients_give(compiler):
    """Nothing is saved; the slices of the one gradient are laid out otherwise than the sum that loses the other."""
    compiled = compiler(_doubled)
    for rows in (4, 5, 3):
        x = torch.randn(rows, 2, requires_grad=True)
        gradient = torch.randn(rows, 4)
        (got,) = torch.autograd.grad(compiled(x)[1], x, gradient)
        torch.testing.assert_close(got, gradient[:, :2] + gradient[:, 2:])
