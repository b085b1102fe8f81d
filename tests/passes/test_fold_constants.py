import torch

from staticrt.passes.dead_code import RemoveDeadCode
from staticrt.passes.fold_constants import FoldConstants
from tests.passes.calls import call

aten = torch.ops.aten


def test_a_mask_from_literals_is_computed_once(trace):
    def model(x):
        mask = torch.ones(4, 4).tril().bool()
        return x.masked_fill(~mask, float("-inf"))

    graph = trace(model, [torch.randn(4, 4)])
    assert graph.run(FoldConstants()).changed
    graph.run(RemoveDeadCode())
    assert graph.targets() == ["aten.masked_fill.Scalar"]
    assert [n.target for n in graph.gm.graph.nodes if n.op == "get_attr"] == ["_folded_0"]


def test_lifted_constants_fold_and_weights_do_not(trace):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(3))
            self.register_buffer("scale", torch.rand(3))

        def forward(self, x):
            return x * self.weight.exp() * self.scale.exp() * torch.tensor([1.0, 2.0, 3.0]).exp()

    graph = trace(Model(), [torch.rand(3)])
    graph.run(FoldConstants(graph.names("CONSTANT_TENSOR")))
    assert graph.count(aten.exp.default) == 2

    graph = trace(Model(), [torch.rand(3)])
    weights = {**graph.names("PARAMETER"), **graph.names("BUFFER")}
    graph.run(FoldConstants(graph.names("CONSTANT_TENSOR"), weights=weights))
    assert graph.count(aten.exp.default) == 0


def test_views_of_frozen_weights_hold_no_second_copy(build):
    def body(graph, x, w):
        return (call(graph, aten.mm.default, x, call(graph, aten.t.default, w)),)

    weight = torch.rand(4, 3)
    graph = build(body, [torch.rand(2, 3), weight])
    assert not graph.run(FoldConstants(weights={"x1": weight})).changed


def test_random_uninitialised_returned_and_written_values_are_not_folded(build):
    def random(graph, x):
        return (call(graph, aten.add.Tensor, x, call(graph, aten.rand.default, [3])),)

    def uninitialised(graph, x):
        return (call(graph, aten.copy.default, call(graph, aten.empty.memory_format, [3]), x),)

    def returned(graph, x):
        return (
            call(graph, aten.zeros.default, [3]),
            call(graph, aten.view.default, call(graph, aten.ones.default, [3]), [3]),
        )

    def written(graph, x):
        zeros = call(graph, aten.zeros.default, [3])
        call(graph, aten.add_.Tensor, zeros, x)
        return (call(graph, aten.neg.default, zeros),)

    for body in (random, uninitialised, returned, written):
        assert not build(body, [torch.rand(3)]).run(FoldConstants()).changed


def test_an_inner_constant_of_a_returned_one_folds(build):
    def body(graph, x):
        return (call(graph, aten.neg.default, call(graph, aten.ones.default, [3])),)

    graph = build(body, [torch.rand(3)])
    assert graph.run(FoldConstants()).changed
    assert graph.targets() == ["aten.neg.default"]


def test_size_limit(build):
    def body(graph, x):
        small = call(graph, aten.ones.default, [256], dtype=torch.uint8)
        large = call(graph, aten.ones.default, [257], dtype=torch.uint8)
        return (
            call(
                graph,
                aten.add.Tensor,
                call(graph, aten.sum.default, small),
                call(graph, aten.add.Tensor, x, large),
            ),
        )

    graph = build(body, [torch.rand(257)])
    graph.run(FoldConstants(limit_bytes=256))
    assert graph.count(aten.ones.default) == 1
    assert next(n for n in graph.gm.graph.nodes if n.target is aten.ones.default).args[0] == [257]


def test_expanded_constants_keep_their_strides(build):
    def body(graph, x):
        row = call(graph, aten.arange.default, 3)
        return (call(graph, aten.add.Tensor, x, call(graph, aten.expand.default, row, [2, 3])),)

    graph = build(body, [torch.rand(2, 3)])
    graph.run(FoldConstants())
    assert graph.targets() == ["aten.expand.default", "aten.add.Tensor"]


def test_symbolic_creation_is_not_folded(trace):
    batch = torch.export.Dim("batch", min=3)
    graph = trace(lambda x: x + torch.arange(x.shape[0]), [torch.randn(5)], {"args": ({0: batch},)})
    graph.run(FoldConstants(), [torch.randn(8)])
    assert sum("arange" in t for t in graph.targets()) == 1


def test_errors_stay_with_the_call(build):
    def body(graph, x):
        return (x,)

    graph = build(body, [torch.rand(3)])
    with graph.gm.graph.inserting_before(graph.gm.graph.output_node()):
        bad = graph.gm.graph.call_function(
            aten.index_select.default,
            (
                graph.gm.graph.call_function(aten.ones.default, ([3],)),
                0,
                graph.gm.graph.call_function(aten.full.default, ([1], 7)),
            ),
        )
    for node in graph.gm.graph.nodes:
        node.meta.setdefault("val", torch.ones(3) if node is not bad else torch.ones(1))
    FoldConstants()(graph.gm)
    assert bad in graph.gm.graph.nodes


def test_running_it_twice_folds_what_became_constant(build):
    def body(graph, x):
        return (
            call(
                graph, aten.add.Tensor, x, call(graph, aten.exp.default, call(graph, aten.ones.default, [3]))
            ),
        )

    graph = build(body, [torch.rand(3)])
    graph.run(FoldConstants())
    assert not graph.run(FoldConstants()).changed
    assert not graph.run(RemoveDeadCode()).changed
