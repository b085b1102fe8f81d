import pytest
import torch

from staticrt.passes.functional import FunctionaliseInPlace
from tests.passes.calls import call

aten = torch.ops.aten


def in_place(graph):
    return [t for t in graph.targets() if t.split(".")[1].endswith("_")]


def test_writes_to_an_own_tensor_become_functional(build):
    def body(graph, x):
        y = call(graph, aten.sin.default, x)
        before = call(graph, aten.neg.default, y)
        z = call(graph, aten.add_.Tensor, y, x, alpha=2)
        call(graph, aten.mul_.Tensor, y, z)
        return (before, y, call(graph, aten.neg.default, z))

    graph = build(body, [torch.rand(3)])
    assert graph.run(FunctionaliseInPlace()).count == 2
    assert in_place(graph) == []


def test_a_written_input_is_written_once_at_the_end(build):
    def body(graph, x, y):
        call(graph, aten.add_.Tensor, x, y)
        call(graph, aten.relu_.default, x)
        return (call(graph, aten.neg.default, x),)

    graph = build(body, [torch.randn(3), torch.randn(3)])
    assert graph.run(FunctionaliseInPlace()).count == 2
    assert in_place(graph) == ["aten.copy_.default"]


def test_random_fills_draw_the_same_numbers(build):
    def body(graph, x):
        y = call(graph, aten.zeros_like.default, x)
        call(graph, aten.uniform_.default, y, 0.0, 2.0)
        z = call(graph, aten.zeros_like.default, x)
        call(graph, aten.bernoulli_.float, z, 0.5)
        return (y, z)

    graph = build(body, [torch.rand(7)])
    graph.run(FunctionaliseInPlace())
    assert "aten.uniform_.default" not in graph.targets()


def through_a_view(graph, x):
    y = call(graph, aten.sin.default, x)
    call(graph, aten.add_.Tensor, call(graph, aten.select.int, y, 0, 0), 1)
    return (call(graph, aten.neg.default, y),)


def under_a_view(graph, x):
    y = call(graph, aten.sin.default, x)
    view = call(graph, aten.view.default, y, [3])
    call(graph, aten.add_.Tensor, y, 1)
    return (call(graph, aten.neg.default, view),)


def returned_input(graph, x):
    return (call(graph, aten.add_.Tensor, x, 1),)


def another_dtype(graph, x):
    y = call(graph, aten.sin.default, x)
    call(
        graph,
        aten.add_.Tensor,
        y,
        call(graph, aten._to_copy.default, call(graph, aten.cos.default, x), dtype=torch.float64),
    )
    return (call(graph, aten.neg.default, y),)


def canonical_write(graph, x):
    call(graph, aten.copy_.default, x, call(graph, aten.sin.default, x))
    return (call(graph, aten.cos.default, x),)


def written_by_a_norm(graph, x):
    mean = call(graph, aten.zeros.default, [3])
    call(graph, aten.add_.Tensor, mean, 1)
    var = call(graph, aten.ones.default, [3])
    y = call(
        graph,
        aten.batch_norm.default,
        call(graph, aten.expand.default, x, [4, 3]),
        None,
        None,
        mean,
        var,
        True,
        0.1,
        1e-5,
        False,
    )
    return (y, call(graph, aten.neg.default, mean))


@pytest.mark.parametrize(
    "body", [through_a_view, under_a_view, returned_input, another_dtype, canonical_write, written_by_a_norm]
)
def test_stays_where_somebody_could_tell(build, body):
    assert not build(body, [torch.rand(3)]).run(FunctionaliseInPlace()).changed


def test_results_of_another_size_or_layout(build):
    def body(graph, x):
        y = call(graph, aten.empty.memory_format, [2, 3], memory_format=torch.contiguous_format)
        call(graph, aten.copy_.default, y, call(graph, aten.t.default, x))
        call(graph, aten.zero_.default, call(graph, aten.sin.default, x))
        return (call(graph, aten.neg.default, y),)

    build(body, [torch.rand(3, 2)]).run(FunctionaliseInPlace())
