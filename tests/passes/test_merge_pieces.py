"""Pieces put together twice, put together again, or taken singly."""

import operator

import pytest
import torch

import staticrt
from staticrt.passes.merge_pieces import MergePieces
from tests.passes.calls import call

aten = torch.ops.aten


def test_an_inner_cat_is_copied_once(trace):
    graph = trace(lambda a, b: torch.cat([torch.cat([a, b], -1), torch.cat([torch.cat([b, a], 1), a], 1)], 1), [torch.rand(2, 3), torch.rand(2, 4)])  # fmt: skip
    assert graph.run(MergePieces()).count == 3
    assert graph.count(aten.cat.default) == 1


def test_a_stack_in_a_cat_is_copied_once(trace):
    args = [torch.rand(3, 2), torch.rand(3, 2)]
    graph = trace(lambda a, b: torch.cat([torch.stack([a, b]), b[None] * 2]), args)
    assert graph.run(MergePieces()).count == 1
    assert graph.count(aten.stack.default) == 0


def wider(a, b):
    return torch.cat([torch.cat([a.int(), a.half()]), b.double()])


def other_dim(a, b):
    return torch.cat([torch.cat([a, b], 0), torch.cat([a, b], 0)], 1)


def read_twice(a, b):
    inner = torch.cat([a, b])
    return torch.cat([inner, a]), inner * 2


def returned(a, b):
    inner = torch.cat([a, b])
    return torch.cat([inner, a]), inner


def twice_in_one(a, b):
    inner = torch.cat([a, b])
    return torch.cat([inner, inner])


def empty_vector(a, b):
    return torch.cat([torch.cat([torch.empty(0), a]), b])


@pytest.mark.parametrize("model", [wider, other_dim, read_twice, returned, twice_in_one, empty_vector])
def test_a_cat_that_is_needed_as_it_is(trace, model):
    graph = trace(model, [torch.rand(2, 3) * 5, torch.rand(2, 3)])
    assert not graph.run(MergePieces()).changed


def test_parts_written_in_between(build):
    def body(graph, a, b):
        inner = call(graph, aten.cat.default, [a, b])
        call(graph, aten.zero_.default, a)
        return (call(graph, aten.cat.default, [inner, b]),)

    assert not build(body, [torch.rand(2), torch.rand(3)]).run(MergePieces()).changed


def again(op, pieces, *args):
    def body(graph, x):
        x = call(graph, aten.sin.default, x)
        listed = call(graph, *pieces[:1], x, *pieces[1:])
        parts = [call(graph, operator.getitem, listed, i) for i in range(3)]
        return (call(graph, aten.cos.default, call(graph, op, parts, *args)),)

    return body


@pytest.mark.parametrize(
    "body",
    [
        again(aten.cat.default, (aten.split.Tensor, 2, 1), 1),
        again(aten.cat.default, (aten.split.Tensor, 2, -1), 1),
        again(aten.cat.default, (aten.split_with_sizes.default, [1, 3, 2], 1), -1),
        again(aten.stack.default, (aten.unbind.int,), 0),
    ],
)
def test_all_pieces_in_order_are_the_whole(build, body):
    graph = build(body, [torch.rand(3, 6)])
    assert graph.run(MergePieces()).count == 1
    (cos,) = [n for n in graph.gm.graph.nodes if n.target is aten.cos.default]
    assert cos.args[0].target is aten.sin.default


def swapped(graph, x):
    listed = call(graph, aten.split.Tensor, call(graph, aten.sin.default, x), 2, 1)
    parts = [call(graph, operator.getitem, listed, i) for i in (1, 0, 2)]
    return (call(graph, aten.cat.default, parts, 1),)


@pytest.mark.parametrize(
    "body",
    [
        again(aten.cat.default, (aten.split.Tensor, 2, 1), 0),
        again(aten.cat.default, (aten.split.Tensor, 1, 1), 1),  # three of six
        again(aten.stack.default, (aten.unbind.int,), 1),
        again(aten.cat.default, (aten.unbind.int,), 0),
        swapped,
    ],
)
def test_other_pieces_stay(build, body):
    assert not build(body, [torch.rand(3, 6)]).run(MergePieces()).changed


def test_a_whole_that_is_returned_stays_a_copy(build):
    def body(graph, x):
        listed = call(graph, aten.split.Tensor, x, 2, 1)
        return (
            call(graph, aten.cat.default, [call(graph, operator.getitem, listed, i) for i in range(3)], 1),
        )

    assert not build(body, [torch.rand(3, 6)]).run(MergePieces()).changed


@pytest.mark.parametrize(("dim", "squeezed"), [(1, 1), (1, -2), (0, 0)])
def test_a_squeezed_piece_is_selected(build, dim, squeezed):
    def body(graph, x):
        piece = call(graph, operator.getitem, call(graph, aten.split.Tensor, x, 1, dim), 2)
        return (call(graph, aten.neg.default, call(graph, aten.squeeze.dim, piece, squeezed)),)

    graph = build(body, [torch.rand(3, 4, 5)])
    assert graph.run(MergePieces()).count == 1
    assert graph.count(aten.select.int) == 1


@pytest.mark.parametrize(("size", "squeezed"), [(2, 1), (1, 0), (1, 2)])
def test_other_squeezes_stay(build, size, squeezed):
    def body(graph, x):
        piece = call(graph, operator.getitem, call(graph, aten.split.Tensor, x, size, 1), 1)
        return (call(graph, aten.neg.default, call(graph, aten.squeeze.dim, piece, squeezed)),)

    assert not build(body, [torch.rand(1, 4, 1)]).run(MergePieces()).changed


@pytest.mark.parametrize(
    "bounds", [(1, 9, 2, 4), (1, 3, 1, 9), (0, 2**63 - 1, 3, 2**63 - 1), (5, 9, 5, 9), (2, 7, 1, 1)]
)
def test_slices_of_slices(build, bounds):
    a, b, c, d = bounds

    def body(graph, x):
        inner = call(graph, aten.slice.Tensor, x, 1, a, b)
        return (call(graph, aten.neg.default, call(graph, aten.slice.Tensor, inner, -1, c, d)),)

    graph = build(body, [torch.rand(3, 8)])
    graph.run(MergePieces())
    (outer,) = [n for n in graph.gm.graph.nodes if n.target is aten.neg.default]
    if bounds != (5, 9, 5, 9):
        assert outer.args[0].args[0].op == "placeholder"


@pytest.mark.parametrize("bounds", [(-3, 9, 1, 2), (1, -1, 0, 3), (0, 8, 0, -1)])
def test_slices_counted_from_the_end_stay(build, bounds):
    a, b, c, d = bounds

    def body(graph, x):
        inner = call(graph, aten.slice.Tensor, x, 1, a, b)
        return (call(graph, aten.neg.default, call(graph, aten.slice.Tensor, inner, 1, c, d)),)

    assert not build(body, [torch.rand(3, 8)]).run(MergePieces()).changed


def rotate(x, y):
    a, b = x.chunk(2, -1)
    both = torch.cat([torch.cat([-b, a], -1), torch.stack([y, y * 2], 1).flatten(1)], -1)
    one, two, three = y[:, :3].split(1, 1)
    return both, one.squeeze(1) * two.squeeze(1) + three.squeeze(1), torch.cat(list(x.split(2, 1)), 1)


def test_compiled_calls_answer_as_eager():
    fast = staticrt.compile(rotate)
    for rows in (2, 5, 1, 0):
        args = [torch.randn(rows, 8), torch.randn(rows, 4)]
        for _ in range(3):
            for got, want in zip(fast(*args), rotate(*args), strict=True):
                assert torch.equal(got, want)
                assert got.stride() == want.stride()
                assert (
                    got.untyped_storage().data_ptr() not in [a.untyped_storage().data_ptr() for a in args]
                    or not rows
                )
