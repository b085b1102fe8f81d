"""Sums of products: merged where their operands are small and may live as long as that takes."""

import functools

import pytest
import torch

from staticrt.passes.base import tensor_meta
from staticrt.passes.canonical_views import CanonicalViews
from staticrt.passes.functional import FunctionaliseInPlace
from staticrt.passes.merge_sums import MergeSums

aten = torch.ops.aten
STEPS, BATCH, ROWS, COLUMNS = 6, 2, 48, 40


def steps(batch=BATCH):
    return [torch.randn(STEPS, batch, ROWS), torch.randn(STEPS, batch, COLUMNS)]


def added(products):
    return functools.reduce(torch.add, products)


def gradient(g, h):
    """Of a weight that is used at every step."""
    return added([torch.mm(a.t(), b) for a, b in reversed(list(zip(g, h, strict=True)))])


def transposed(g, h):
    """The same, as autograd computes it where the layer transposes its weight."""
    return added([torch.mm(b.t(), a).t() for a, b in zip(g, h, strict=True)])


def of_columns(g, h):
    """Left operands that are no transpositions."""
    return added([torch.mm(a[0][:, None], b[:1]) for a, b in zip(g, h, strict=True)])


def with_others(g, h):
    total = (g[0, 0][:, None] * h[0, 0]).sin().repeat(4, 1)[:ROWS]
    for a, b in zip(g, h, strict=True):
        total = (torch.mm(a.t(), b) + total) + a[0][:, None] * b[1]
    return total


def accumulated(g, h):
    total = torch.mm(g[0].t(), h[0])
    for a, b in zip(g[1:], h[1:], strict=True):
        total += torch.mm(a.t(), b)
    return total


@pytest.mark.parametrize("model", [gradient, transposed, of_columns, with_others, accumulated])
def test_products_that_are_added_up_become_one(trace, model):
    graph = trace(model, steps())
    FunctionaliseInPlace()(graph.gm)
    CanonicalViews()(graph.gm)
    before = graph.count(aten.mm.default)
    assert graph.run(MergeSums(), steps()).count == before - 1 >= STEPS - 1
    assert graph.count(aten.mm.default) == 1


def test_sizes_may_vary(trace):
    batch = torch.export.Dim("batch", min=2, max=8)
    graph = trace(gradient, steps(3), (({1: batch}, {1: batch}),))
    graph.run(MergeSums(), steps(3), steps(5))
    assert graph.count(aten.mm.default) == 1


def large_operands(g, h):
    """More rows than either side of the product."""
    return added(
        [torch.mm(a, b.t()) for a, b in zip(g.mT.repeat(1, 1, 30), h.mT.repeat(1, 1, 30), strict=True)]
    )


def integers(g, h):
    return gradient(g.int(), h.int())


def read_twice(g, h):
    first, second = torch.mm(g[0].t(), h[0]), torch.mm(g[1].t(), h[1])
    return first + second, first * second


def scaled(g, h):
    return torch.add(torch.mm(g[0].t(), h[0]), torch.mm(g[1].t(), h[1]), alpha=2)


def broadcast(g, h):
    return torch.mm(g[0].t(), h[0]) + torch.mm(g[1, :, :1].t(), h[1])


def doubled(g, h):
    product = torch.mm(g[0].t(), h[0])
    return product + product


@pytest.mark.parametrize("model", [large_operands, integers, read_twice, scaled, broadcast, doubled])
def test_products_that_stay(trace, model):
    graph = trace(model, steps())
    assert not graph.run(MergeSums()).changed


def test_an_operand_that_is_written_in_between_stays(build):
    def body(graph, a, b):
        first = graph.call_function(aten.mm.default, (a, b))
        graph.call_function(aten.zero_.default, (a,))
        second = graph.call_function(aten.mm.default, (a, b))
        return (graph.call_function(aten.add.Tensor, (first, second)),)

    assert not build(body, [torch.rand(9, 1), torch.rand(1, 9)]).run(MergeSums()).changed


def test_a_sum_in_a_sum(trace):
    """The inner one is added with other strides, so that it is a sum of its own."""

    def model(g, h):
        inner = gradient(g, h).t()
        return inner + (torch.mm(h[0].t(), g[0]) + torch.mm(h[1].t(), g[1]))

    graph = trace(model, steps())
    CanonicalViews()(graph.gm)
    assert graph.run(MergeSums(), steps()).count == STEPS
    assert graph.count(aten.mm.default) == 2


def _most_bytes(graph):
    """Brute force: what lives while each node runs."""
    nodes = list(graph.gm.graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    owners = {}
    for node in nodes:
        is_view = node.target in (aten.permute.default, aten.t.default, aten.transpose.int, aten.select.int)
        owners[node] = owners[node.args[0]] if is_view else node
    most = 0
    for at in range(len(nodes)):
        live = {owners[n] for n in nodes[: at + 1] if any(place[user] >= at for user in n.users)}
        most = max(most, sum(tensor_meta(n).nbytes for n in {*live, nodes[at]} if tensor_meta(n) is not None))
    return most


@pytest.mark.parametrize("first", [0, 16, 30])
def test_the_most_bytes_at_one_time_do_not_grow(trace, first):
    """Each step makes operands half as large as the product; `first` is what lives before, in products."""

    def model(x):
        before = x.sin().repeat(first, 1)
        total = torch.mm((before.sum() * x).t(), x)
        for step in range(8):
            total = total + torch.mm((x + step).t(), x - step)
        return total

    graph = trace(model, [torch.randn(4, 16)])
    before = _most_bytes(graph)
    result = graph.run(MergeSums())
    assert _most_bytes(graph) <= before
    assert result.count == {0: 0, 16: 4, 30: 7}[first]
