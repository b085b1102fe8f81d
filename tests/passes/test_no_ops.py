import pytest
import torch

import staticrt
from staticrt.passes.no_ops import RemoveNoOps
from tests.passes.calls import call

aten = torch.ops.aten


NO_OPS = {
    "clone": (aten.clone.default, ()),
    "to the same dtype": (aten._to_copy.default, ()),
    "detach": (aten.detach.default, ()),
    "alias": (aten.alias.default, ()),
    "slice of everything": (aten.slice.Tensor, (0, 0, 9223372036854775807)),
    "slice to the exact size": (aten.slice.Tensor, (1, 0, 3)),
    "expand to the same sizes": (aten.expand.default, ([4, 3],)),
    "expand with kept sizes": (aten.expand.default, ([-1, 3],)),
    "view with the same sizes": (aten.view.default, ([4, 3],)),
    "identity permutation": (aten.permute.default, ([0, 1],)),
    "transpose of a dim with itself": (aten.transpose.int, (1, -1)),
    "squeeze of no dim": (aten.squeeze.dim, (0,)),
    "times one": (aten.mul.Tensor, (1,)),
    "divided by one": (aten.div.Tensor, (1.0,)),
    "padding by nothing": (aten.constant_pad_nd.default, ([0, 0, 0, 0], 1.0)),
    "repeat once": (aten.repeat.default, ([1, 1],)),
    "dropout in eval mode": (aten.dropout.default, (0.5, False)),
    "dropout of nothing": (aten.dropout.default, (0.0, True)),
    "contiguous": (aten.contiguous.default, ()),
}
KEPT = {
    "clone to another format": (aten.clone.default, (), {"memory_format": torch.channels_last}),
    "cast": (aten._to_copy.default, (), {"dtype": torch.float64}),
    "slice of a part": (aten.slice.Tensor, (0, 1, 9223372036854775807), {}),
    "slice with a step": (aten.slice.Tensor, (0, 0, 9223372036854775807, 2), {}),
    "padding of the same size that moves": (aten.constant_pad_nd.default, ([1, -1], 0.0), {}),
    "plus zero (-0.0 becomes 0.0)": (aten.add.Tensor, (0,), {}),
    "times true": (aten.mul.Tensor, (2,), {}),
    "active dropout": (aten.dropout.default, (0.5, True), {}),
    "transpose of a square": (aten.transpose.int, (0, 1), {}),
}


@pytest.mark.parametrize("name", NO_OPS)
def test_goes_between_two_calls(build, name):
    op, args = NO_OPS[name]

    def body(graph, x):
        inner = call(graph, op, call(graph, aten.sin.default, x), *args)
        return (call(graph, aten.cos.default, inner),)

    graph = build(body, [torch.randn(4, 3)])
    assert graph.run(RemoveNoOps()).count == 1
    assert graph.targets() == ["aten.sin.default", "aten.cos.default"]


@pytest.mark.parametrize("name", KEPT)
def test_stays_where_it_does_something(build, name):
    op, args, kwargs = KEPT[name]
    x = torch.randn(2, 3, 4, 4) if "format" in name else torch.randn(4, 4)
    x.view(-1)[0] = -0.0

    def body(graph, x):
        return (call(graph, aten.neg.default, call(graph, op, x, *args, **kwargs)),)

    assert not build(body, [x]).run(RemoveNoOps()).changed


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.sub.Tensor])
@pytest.mark.parametrize(
    ("dtype", "number", "goes"), [(torch.int64, 0, 1), (torch.int64, 0.0, 0), (torch.bool, 0, 0)]
)
def test_integers_have_one_zero(build, op, dtype, number, goes):
    def body(graph, x):
        return (call(graph, aten.mul.Tensor, call(graph, op, call(graph, aten.mul.Tensor, x, x), number), 2),)

    if op is aten.sub.Tensor and dtype == torch.bool:
        return
    assert build(body, [torch.tensor([0, 1, 1]).to(dtype)]).run(RemoveNoOps()).count == goes


@pytest.mark.parametrize("name", NO_OPS)
def test_never_makes_an_output_an_input(build, name):
    op, args = NO_OPS[name]
    graph = build(lambda graph, x: (call(graph, op, x, *args),), [torch.randn(4, 3)])
    assert not graph.run(RemoveNoOps()).changed


@pytest.mark.parametrize("name", NO_OPS)
def test_never_makes_two_outputs_one_tensor(build, name):
    op, args = NO_OPS[name]

    def body(graph, x):
        fresh = call(graph, aten.sin.default, x)
        return (fresh, call(graph, op, fresh, *args))

    assert not build(body, [torch.randn(4, 3)]).run(RemoveNoOps()).changed


def test_a_fresh_copy_may_become_the_output_itself(build):
    def body(graph, x):
        return (call(graph, aten.clone.default, call(graph, aten.sin.default, x)),)

    graph = build(body, [torch.randn(4, 3)])
    assert graph.run(RemoveNoOps()).count == 1


def test_a_copy_under_a_returned_view_of_an_input_stays(build):
    def body(graph, x):
        return (call(graph, aten.view.default, call(graph, aten.clone.default, x), [12]),)

    assert not build(body, [torch.randn(4, 3)]).run(RemoveNoOps()).changed


def test_a_copy_stays_if_the_original_or_the_copy_is_written(build):
    def original(graph, x, y):
        kept = call(graph, aten.clone.default, x)
        call(graph, aten.copy_.default, x, y)
        return (call(graph, aten.neg.default, kept),)

    def copy(graph, x, y):
        changed = call(graph, aten.clone.default, x)
        call(graph, aten.add_.Tensor, changed, y)
        return (call(graph, aten.sub.Tensor, x, changed),)

    def through_a_view(graph, x, y):
        kept = call(graph, aten.clone.default, x)
        call(graph, aten.zero_.default, call(graph, aten.select.int, x, 0, 0))
        return (call(graph, aten.neg.default, kept),)

    for body in (original, copy, through_a_view):
        assert not build(body, [torch.randn(4, 3), torch.randn(4, 3)]).run(RemoveNoOps()).changed


def test_a_copy_of_an_expanded_tensor_stays_for_its_strides(build):
    def body(graph, x):
        return (
            call(
                graph,
                aten.neg.default,
                call(graph, aten.clone.default, call(graph, aten.expand.default, x, [4, 3])),
            ),
        )

    assert not build(body, [torch.randn(3)]).run(RemoveNoOps()).changed


def test_detach_stays_if_somebody_differentiates(build):
    def body(graph, x):
        return (call(graph, aten.sin.default, call(graph, aten.detach.default, x)),)

    assert not build(body, [torch.rand(3)]).run(RemoveNoOps(inference=False)).changed
    assert build(body, [torch.rand(3)]).run(RemoveNoOps(inference=True)).changed


def test_symbolic_slices_and_expands(trace):
    def model(x):
        whole = x[0 : x.shape[0]]
        part = x[1 : x.shape[0]]
        return (whole.expand(x.shape[0], 3) * 2).sum(0), part * 2, x[: x.shape[0] - 1] * 2

    batch = torch.export.Dim("batch", min=3)
    graph = trace(model, [torch.randn(5, 3)], {"args": ({0: batch},)})
    graph.run(RemoveNoOps(), [torch.randn(9, 3)])
    assert graph.count(aten.expand.default) == 0
    assert graph.count(aten.slice.Tensor) == 2


def test_copy_onto_itself_goes(build):
    def body(graph, x):
        call(graph, aten.copy_.default, x, x)
        return (call(graph, aten.neg.default, x),)

    assert build(body, [torch.rand(3)]).run(RemoveNoOps()).count == 1


def _gates(graph, x, read):
    """In-place `sigmoid_` of the first half of the rows, as it is recorded."""
    half = call(graph, aten.slice.Tensor, call(graph, aten.sin.default, x), 1, 0, 3)
    gate = call(graph, aten.copy.default, half, call(graph, aten.sigmoid.default, half))
    return read(graph, gate)


@pytest.mark.parametrize(
    ("read", "goes"),
    [
        (lambda graph, gate: (call(graph, aten.mul.Tensor, gate, gate),), 1),
        (lambda graph, gate: (call(graph, aten.sum.dim_IntList, call(graph, aten.t.default, gate), [0]),), 1),
        (lambda graph, gate: (gate,), 0),
        (lambda graph, gate: (call(graph, aten.t.default, gate),), 0),
        (
            lambda graph, gate: (
                call(graph, aten.neg.default, call(graph, aten.as_strided.default, gate, [2], [6])),
            ),
            0,
        ),
        (lambda graph, gate: (call(graph, aten.neg.default, call(graph, aten.add_.Tensor, gate, 1)),), 0),
    ],
    ids=["read", "view read", "returned", "view returned", "strided by hand", "written"],
)
def test_a_part_written_in_place_needs_no_layout_with_gaps(build, read, goes):
    graph = build(lambda graph, x: _gates(graph, x, read), [torch.randn(4, 6)])
    assert graph.run(RemoveNoOps()).count == goes
    assert graph.count(aten.copy.default) == 1 - goes


@pytest.mark.parametrize("of", ["another dtype", "broadcast", "other order"])
def test_a_copy_into_a_layout_that_changes_more_stays(build, of):
    def body(graph, x, y):
        half = call(graph, aten.slice.Tensor, call(graph, aten.sin.default, x), 1, 0, 3)
        return (
            call(
                graph,
                aten.neg.default,
                call(graph, aten.copy.default, half, call(graph, aten.abs.default, y)),
            ),
        )

    y = {
        "another dtype": torch.randn(4, 3, dtype=torch.double),
        "broadcast": torch.randn(3),
        "other order": torch.randn(3, 4).t(),
    }[of]
    assert not build(body, [torch.randn(4, 6), y]).run(RemoveNoOps()).changed


def test_writes_to_views_of_sizes_that_data_decides_are_traced_whole():
    def function(x):
        chosen = x.masked_select(x > 0)
        chosen[:, None][:, 0] = 2
        return x + 1, chosen

    compiled = staticrt.compile(function)
    with torch.no_grad():
        for x in (torch.ones(3, 3), -torch.ones(3, 3), torch.eye(3), torch.eye(3)[:1] * 1):
            for _ in range(2):
                torch.testing.assert_close(compiled(x), function(x))
    report = compiled.explain()
    assert "not traced whole" not in str(report)
    assert report.eager == ()
