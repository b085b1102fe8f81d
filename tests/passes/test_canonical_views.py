import pytest
import torch

from staticrt.passes.canonical_views import CanonicalViews
from tests.passes.calls import call

aten = torch.ops.aten


def chain(*steps):
    def body(graph, x):
        for op, *args in steps:
            x = call(graph, op, x, *args)
        return (call(graph, aten.neg.default, x),)

    return body


def test_view_of_view_is_one_view(build):
    graph = build(chain((aten.view.default, [6, 4]), (aten.view.default, [3, 8])), [torch.rand(2, 3, 4)])
    assert graph.run(CanonicalViews()).count == 1
    view = next(n for n in graph.gm.graph.nodes if n.args and list(n.args[1:]) == [[3, 8]])
    assert view.args[0].op == "placeholder"


def test_views_through_squeeze_and_unsqueeze(build):
    graph = build(chain((aten.unsqueeze.default, 1), (aten.view.default, [6])), [torch.rand(2, 3)])
    assert graph.run(CanonicalViews()).count == 1


def test_a_view_of_a_view_of_strided_memory_stays_right(build):
    steps = ((aten.transpose.int, 0, 1), (aten.unsqueeze.default, 0), (aten.view.default, [1, 3, 2, 1]))
    build(chain(*steps), [torch.rand(2, 3)]).run(CanonicalViews())


def test_permutations_are_composed(build):
    steps = ((aten.permute.default, [1, 2, 0]), (aten.transpose.int, 0, -1))
    graph = build(chain(*steps), [torch.rand(2, 3, 4)])
    assert graph.run(CanonicalViews()).count == 1
    assert any(n.args[1:] == ([0, 2, 1],) and n.args[0].op == "placeholder" for n in graph.gm.graph.nodes)


@pytest.mark.parametrize(
    "steps",
    [
        ((aten.transpose.int, 0, 1), (aten.transpose.int, 1, 0)),
        ((aten.permute.default, [1, 2, 0]), (aten.permute.default, [2, 0, 1])),
        ((aten.unsqueeze.default, 1), (aten.squeeze.dim, 1)),
        ((aten.view.default, [24]), (aten.view.default, [2, 3, 4])),
        (
            (aten.unsqueeze.default, 0),
            (aten.transpose.int, 1, 2),
            (aten.transpose.int, 1, 2),
            (aten.squeeze.dim, 0),
        ),
    ],
)
def test_chains_that_lead_back_go(build, steps):
    graph = build(chain(*steps), [torch.rand(2, 3, 4)])
    assert graph.run(CanonicalViews()).changed
    (neg,) = [n for n in graph.gm.graph.nodes if n.target is aten.neg.default]
    assert neg.args[0].op == "placeholder"


def test_a_returned_view_does_not_become_the_input(build):
    def body(graph, x):
        return (call(graph, aten.t.default, call(graph, aten.t.default, x)),)

    graph = build(body, [torch.rand(2, 3)])
    graph.run(CanonicalViews())  # the comparison checks identity and storage


def test_reshape_of_contiguous_memory_is_a_view_and_of_transposed_memory_is_not(build):
    graph = build(chain((aten.reshape.default, [6])), [torch.rand(2, 3)])
    assert graph.run(CanonicalViews()).changed
    assert graph.count(aten.view.default) == 1
    graph = build(chain((aten.reshape.default, [6])), [torch.rand(3, 2).t()])
    assert not graph.run(CanonicalViews()).changed


def test_views_of_a_written_tensor_stay_views_of_it(build):
    def body(graph, x):
        inner = call(graph, aten.view.default, x, [6])
        outer = call(graph, aten.view.default, inner, [3, 2])
        call(graph, aten.add_.Tensor, inner, 1)
        return (call(graph, aten.neg.default, outer),)

    assert build(body, [torch.rand(2, 3)]).run(CanonicalViews()).changed


def test_expands_are_composed_unless_a_size_is_kept(build):
    steps = ((aten.expand.default, [2, 3]), (aten.expand.default, [4, 2, 3]))
    assert build(chain(*steps), [torch.rand(2, 1)]).run(CanonicalViews()).count == 1
    steps = ((aten.expand.default, [2, 3]), (aten.expand.default, [4, -1, -1]))
    assert not build(chain(*steps), [torch.rand(2, 1)]).run(CanonicalViews()).changed


def test_symbolic_sizes(trace):
    def model(x):
        return x.view(x.shape[0] * 3, 4).view(x.shape[0], 12).unsqueeze(0).view(-1) * 2, x.transpose(
            0, 1
        ).reshape(-1) * 2

    batch = torch.export.Dim("batch", min=3)
    graph = trace(model, [torch.randn(5, 3, 4)], {"args": ({0: batch},)})
    before = graph.count(aten.view.default)
    graph.run(CanonicalViews(), [torch.randn(9, 3, 4)])
    graph.gm.graph.eliminate_dead_code()
    assert graph.count(aten.view.default) < before
