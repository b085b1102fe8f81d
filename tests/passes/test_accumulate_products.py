"""Products that are added up: each is added to the sum where it is computed."""

import functools

import pytest
import torch

import staticrt
from staticrt.passes.accumulate_products import AccumulateProducts
from staticrt.passes.canonical_views import CanonicalViews
from staticrt.passes.dead_code import RemoveDeadCode
from staticrt.passes.functional import FunctionaliseInPlace

aten = torch.ops.aten
STEPS, BATCH, ROWS, COLUMNS = 6, 2, 48, 40


def steps(batch=BATCH, dtype=torch.float32):
    return [torch.randn(STEPS, batch, size, dtype=dtype) for size in (ROWS, COLUMNS)]


def added(products):
    return functools.reduce(torch.add, products)


def gradient(g, h):
    """Of a weight that is used at every step."""
    return added([torch.mm(a.t(), b) for a, b in reversed(list(zip(g, h, strict=True)))])


def transposed(g, h):
    """The same, as autograd computes it where the layer transposes its weight."""
    return added([torch.mm(b.t(), a).t() for a, b in zip(g, h, strict=True)])


def accumulated(g, h):
    total = torch.mm(g[0].t(), h[0])
    for a, b in zip(g[1:], h[1:], strict=True):
        total += torch.mm(a.t(), b)
    return total


def with_dead_readers(g, h):
    products = [torch.mm(a.t(), b) for a, b in zip(g, h, strict=True)]
    for product in products:
        product.t().sin()
    return added(products)


@pytest.mark.parametrize("model", [gradient, transposed, accumulated, with_dead_readers])
def test_products_are_added_to_the_sum(trace, model):
    graph = trace(model, steps())
    for graph_pass in (FunctionaliseInPlace(), CanonicalViews(), RemoveDeadCode()):
        graph_pass(graph.gm)
    assert graph.run(AccumulateProducts(), steps()).count == STEPS - 1
    RemoveDeadCode()(graph.gm)
    assert graph.count(aten.mm.default) == 1
    assert graph.count(aten.addmm.default) == STEPS - 1
    assert graph.count(aten.add.Tensor) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [gradient, transposed, accumulated])
def test_a_compiled_sum_equals_eager(model, dtype):
    compiled = staticrt.compile(model)
    for batch in (1, 2, 5, 2):
        g, h = steps(batch, dtype)
        for _ in range(3):
            expected = model(g.double(), h.double()).to(dtype)
            torch.testing.assert_close(compiled(g, h), expected, rtol=1e-4, atol=1e-5)


def test_the_sum_is_written_over_the_earlier_product():
    def model(g, h):
        return gradient(g, h).sin()

    compiled = staticrt.compile(model)
    for _ in range(3):
        compiled(*steps())
    ((report,),) = (list(trace.signatures) for trace in compiled.explain().traces)
    assert report.arena_bytes < 2 * ROWS * COLUMNS * 4


def read_twice(g, h):
    first, second = torch.mm(g[0].t(), h[0]), torch.mm(g[1].t(), h[1])
    return first + second, first * second


def scaled(g, h):
    return torch.add(torch.mm(g[0].t(), h[0]), torch.mm(g[1].t(), h[1]), alpha=2)


def half(g, h):
    return gradient(g.half(), h.half())


def integers(g, h):
    return gradient(g.int(), h.int())


def doubled(g, h):
    product = torch.mm(g[0].t(), h[0])
    return product + product


def broadcast(g, h):
    return torch.mm(g[0, :, :1].t(), h[0]) + torch.mm(g[1].t(), h[1])


def of_layers(g, h):
    return torch.mm(g[0], h[0].new_ones(ROWS, 9)) + torch.mm(g[1], h[0].new_ones(ROWS, 9))


@pytest.mark.parametrize("model", [read_twice, scaled, half, integers, doubled, broadcast, of_layers])
def test_sums_that_stay(trace, model):
    graph = trace(model, steps())
    CanonicalViews()(graph.gm)
    assert not graph.run(AccumulateProducts()).changed


def test_the_larger_product_overflows_as_in_eager():
    g, h = steps()
    g[3, 0, 5], h[3, 0, 7] = 3e38, 3e38
    compiled = staticrt.compile(gradient)
    for _ in range(3):
        assert compiled(g, h)[5, 7] == gradient(g, h)[5, 7] == torch.inf
