"""If, Loop and Scan at their edges, against ONNX Runtime: no step, other shapes, values from outside, sequences."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper

import staticrt


def info(name, dims=None, kind=T.FLOAT):
    return helper.make_tensor_value_info(name, kind, dims)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def constant(name, value):
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value)))


def model(nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(proto, *calls):
    """The same answers, shapes and types for every call, twice."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = staticrt.from_onnx(proto)
    for feed in (*calls, *calls):
        want = session.run(None, feed)
        found = ours(**feed)
        found = found if isinstance(found, tuple) else (found,)
        assert len(want) == len(found)
        for w, f in zip(want, found, strict=True):
            assert (w.shape, str(w.dtype)) == (tuple(f.shape), str(f.dtype).removeprefix("torch."))
            np.testing.assert_allclose(f, w, rtol=1e-5, atol=1e-6)
    return ours


def x(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def collecting(dims, stop=None, kind=T.FLOAT):
    """A Loop that doubles x and collects what it had; `stop`: the sum at which it ends."""
    going = (
        [node("Identity", "c", "go")]
        if stop is None
        else [
            constant("most", np.float32(stop)),
            node("ReduceSum", "s", "sum", keepdims=0),
            node("Less", "sum most", "go"),
        ]
    )
    body = helper.make_graph(
        [*going, node("Add", "s s", "so"), node("Identity", "s", "row")],
        "body",
        [info("i", [], T.INT64), info("c", [], T.BOOL), info("s", None, kind)],
        [info("go", [], T.BOOL), info("so", None, kind), info("row", dims, kind)],
    )
    return node("Loop", "n c0 x", "y rows", body=body)


@pytest.mark.parametrize("dims", [[2, 3], ["a", 3], None])
@pytest.mark.parametrize("kind", [T.FLOAT, T.INT64])
def test_a_loop_without_a_step_collects_no_rows(dims, kind):
    proto = model(
        [collecting(dims, kind=kind)],
        [info("n", [], T.INT64), info("c0", [], T.BOOL), info("x", ["a", "b"], kind)],
        [info("y", None, kind), info("rows", None, kind)],
    )
    value = (x(2, 3) * 8).astype(np.float32 if kind == T.FLOAT else np.int64)
    feeds = [
        {"n": np.array(n), "c0": np.array(c), "x": value}
        for n, c in ((0, True), (2, True), (3, False), (1, True))
    ]
    check(proto, *feeds)


def test_the_trip_count_is_a_size_that_may_be_0():
    proto = model(
        [
            node("Shape", "z", "shape"),
            constant("first", np.array(0)),
            node("Gather", "shape first", "n"),
            constant("c0", np.array(True)),
            collecting([2, 3]),
        ],
        [info("z", ["steps", 2]), info("x", ["a", "b"])],
        [info("y"), info("rows")],
    )
    check(proto, *({"z": x(n, 2), "x": x(2, 3)} for n in (3, 0, 5, 40, 0)))


def test_data_end_a_loop_that_collects():
    proto = model(
        [constant("n", np.array(20)), constant("c0", np.array(True)), collecting([3], stop=50.0)],
        [info("x", [3])],
        [info("y"), info("rows")],
    )
    check(proto, *({"x": np.full(3, value, np.float32)} for value in (1, 3, 100, -1)))


def test_a_loop_of_which_the_condition_is_computed_and_false_at_once():
    proto = model(
        [
            constant("n", np.array(4)),
            constant("none", np.float32(0)),
            node("ReduceSum", "x", "sum", keepdims=0),
            node("Greater", "sum none", "c0"),
            collecting([2]),
        ],
        [info("x", [2])],
        [info("y"), info("rows")],
    )
    check(proto, {"x": np.array([-1, -1], np.float32)}, {"x": np.array([1, 1], np.float32)})


@pytest.mark.parametrize("known", [True, False])
def test_branches_of_other_shape(known):
    """One branch gives [a, b], the other its first row."""
    first = helper.make_graph([node("Neg", "x", "t")], "then", [], [info("t")])
    second = helper.make_graph(
        [constant("zero", np.array(0)), node("Gather", "x zero", "e", axis=0)], "else", [], [info("e")]
    )
    nodes = [node("If", "c", "y", then_branch=first, else_branch=second)]
    if not known:
        nodes = [
            node("ReduceSum", "x", "sum", keepdims=0),
            constant("none", np.float32(0)),
            node("Greater", "sum none", "c"),
            *nodes,
        ]
    inputs = [info("x", ["a", "b"]), *([info("c", [], T.BOOL)] if known else [])]
    feeds = [{"x": sign * abs(x(2, 3)), "c": np.array(sign > 0)} for sign in (1, -1)]
    check(
        model(nodes, inputs, [info("y")]),
        *({k: f[k] for k in (["x", "c"] if known else ["x"])} for f in feeds),
    )


@pytest.mark.parametrize("inner_trips", [0, 3])
def test_nested_loops_read_values_from_outside(inner_trips):
    inner = helper.make_graph(
        [
            node("Identity", "ic", "igo"),
            node("Cast", "ii", "step", to=T.FLOAT),
            node("Mul", "x step", "scaled"),  # from the outermost graph
            node("Add", "outer scaled", "more"),  # from the loop around
            node("Add", "s more", "iso"),
            node("ReduceSum", "iso", "irow", keepdims=0),
        ],
        "inner",
        [info("ii", [], T.INT64), info("ic", [], T.BOOL), info("s")],
        [info("igo", [], T.BOOL), info("iso"), info("irow", [])],
    )
    body = helper.make_graph(
        [
            node("Identity", "c", "go"),
            constant("im", np.array(inner_trips)),
            node("Add", "v x", "outer"),
            node("Loop", "im c v", "vo irows", body=inner),
        ],
        "body",
        [info("i", [], T.INT64), info("c", [], T.BOOL), info("v")],
        [info("go", [], T.BOOL), info("vo"), info("irows", [inner_trips])],
    )
    proto = model(
        [constant("c0", np.array(True)), node("Loop", "n c0 x", "y rows", body=body)],
        [info("n", [], T.INT64), info("x", ["a"])],
        [info("y"), info("rows")],
    )
    check(proto, *({"n": np.array(n), "x": x(3)} for n in (2, 0, 4)))


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_grows_a_sequence(trips):
    sequence = helper.make_tensor_sequence_value_info("s", T.FLOAT, None)
    grown = helper.make_tensor_sequence_value_info("so", T.FLOAT, None)
    body = helper.make_graph(
        [
            node("Identity", "c", "go"),
            node("Cast", "i", "step", to=T.FLOAT),
            node("Mul", "x step", "item"),
            node("SequenceInsert", "s item", "so"),
        ],
        "body",
        [info("i", [], T.INT64), info("c", [], T.BOOL), sequence],
        [info("go", [], T.BOOL), grown],
    )
    proto = model(
        [
            constant("c0", np.array(True)),
            node("SequenceConstruct", "x", "start"),
            node("Loop", "n c0 start", "all", body=body),
            node("ConcatFromSequence", "all", "y", axis=0),
            node("SequenceLength", "all", "length"),
        ],
        [info("n", [], T.INT64), info("x", ["a", 2])],
        [info("y"), info("length", [], T.INT64)],
    )
    check(proto, {"n": np.array(trips), "x": x(3, 2)}, {"n": np.array(trips), "x": x(1, 2)})


def summing(dims):
    body = helper.make_graph(
        [node("Add", "s e", "so"), node("Mul", "so e", "row")],
        "body",
        [info("s"), info("e")],
        [info("so"), info("row", dims)],
    )
    return node("Scan", "x z", "y rows", body=body, num_scan_inputs=1)


def test_a_scan_of_no_rows_gives_its_state_and_no_rows():
    """ONNX Runtime refuses it; the operator's definition does not."""
    ours = staticrt.from_onnx(
        model([summing([3])], [info("x", [3]), info("z", ["n", 3])], [info("y"), info("rows")])
    )
    for n in (0, 4, 0, 40):
        start, rows = x(3), x(n, 3)
        y, out = ours(x=start, z=rows)
        assert out.shape == (n, 3)
        sums = start + np.cumsum(rows, 0)
        np.testing.assert_allclose(y, sums[-1] if n else start, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(out, sums * rows, rtol=1e-4, atol=1e-5)
