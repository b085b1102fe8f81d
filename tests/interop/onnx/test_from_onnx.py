"""`staticrt.from_onnx`: calling, names, sizes, state, errors."""

import os

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import staticrt
from staticrt.errors import InputError, OnnxError


def model(nodes, inputs, outputs, initializers=(), opset=20, functions=(), domains=()):
    """A model; inputs and outputs are (name, element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WEIGHT = np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32)
BIAS = np.arange(3, dtype=np.float32)


def linear():
    nodes = [
        helper.make_node("MatMul", ["input.1", "layer.weight"], ["product"]),
        helper.make_node("Add", ["product", "layer.bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["out"]),
    ]
    return model(
        nodes,
        [("input.1", FLOAT, ["batch", 4])],
        [("out", FLOAT, ["batch", 3])],
        [("layer.weight", WEIGHT), ("layer.bias", BIAS)],
    )


def expected(x):
    return np.maximum(np.asarray(x) @ WEIGHT + BIAS, 0)


def compiled_once(compiled):
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


def test_one_trace_serves_every_batch():
    compiled = staticrt.from_onnx(linear())
    for batch in (1, 5, 2, 7):
        x = torch.randn(batch, 4)
        np.testing.assert_allclose(compiled(x), expected(x), rtol=1e-5, atol=1e-6)
    compiled_once(compiled)


def test_an_empty_batch_has_a_trace_of_its_own():
    compiled = staticrt.from_onnx(linear())
    for batch in (3, 0, 5, 0):
        x = torch.randn(batch, 4)
        out = compiled(x)
        assert out.shape == (batch, 3)
        np.testing.assert_allclose(out, expected(x), rtol=1e-5, atol=1e-6)
    report = compiled.explain()
    assert len(report.traces) == 2, report
    assert not report.eager, report


def test_inputs_come_by_position_or_name_as_tensors_or_arrays():
    compiled = staticrt.from_onnx(linear())
    x = torch.randn(2, 4)
    for out in (
        compiled(x),
        compiled(**{"input.1": x}),
        compiled(x.numpy()),
        compiled(**{"input.1": x.numpy()}),
    ):
        assert isinstance(out, torch.Tensor)
        np.testing.assert_allclose(out, expected(x), rtol=1e-5, atol=1e-6)
    assert compiled.input_names == ("input.1",)
    assert compiled.output_names == ("out",)


def test_paths_bytes_and_messages_are_the_same_model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path)
    x = torch.randn(2, 4)
    for given in (path, str(path), path.read_bytes(), linear()):
        np.testing.assert_allclose(staticrt.from_onnx(given)(x), expected(x), rtol=1e-5, atol=1e-6)


def test_initializers_are_live_parameters():
    compiled = staticrt.from_onnx(linear())
    x = torch.randn(2, 4)
    compiled(x)
    assert set(compiled.state_dict()) == {"layer.weight", "layer.bias"}
    compiled.load_state_dict({"layer.weight": torch.ones(4, 3), "layer.bias": torch.zeros(3)})
    torch.testing.assert_close(compiled(x), (x @ torch.ones(4, 3)).relu())
    compiled.get_submodule("layer").weight = torch.nn.Parameter(torch.zeros(4, 3), requires_grad=False)
    torch.testing.assert_close(compiled(x), torch.zeros(2, 3))


def test_fixed_sizes_types_and_names_are_checked():
    compiled = staticrt.from_onnx(linear())
    with pytest.raises(InputError, match=r"'input.1' has shape \[2, 5\], the model takes \[batch, 4\]"):
        compiled(torch.randn(2, 5))
    with pytest.raises(InputError, match=r"is torch.float32, got torch.float64"):
        compiled(torch.randn(2, 4, dtype=torch.float64))
    with pytest.raises(InputError, match=r"'input.1' is missing"):
        compiled()
    with pytest.raises(InputError, match="'x' is not an input"):
        compiled(x=torch.randn(2, 4))
    with pytest.raises(InputError, match="takes 1 inputs, got 2"):
        compiled(torch.randn(2, 4), torch.randn(2, 4))
    np.testing.assert_allclose(compiled(torch.ones(1, 4)), expected(np.ones((1, 4))), rtol=1e-5)


def test_shape_arithmetic_leaves_no_trace_and_stays_symbolic():
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["row"]),
        helper.make_node("Concat", ["row", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["out"]),
    ]
    compiled = staticrt.from_onnx(
        model(
            nodes,
            [("x", FLOAT, ["n", 2, "m"])],
            [("out", FLOAT, ["n", None])],
            [("zero", np.array(0)), ("axes", np.array([0])), ("rest", np.array([-1]))],
        )
    )
    for n, m in ((2, 3), (5, 4), (1, 1)):
        x = torch.randn(n, 2, m)
        torch.testing.assert_close(compiled(x), x.reshape(n, -1))
    compiled_once(compiled)
    assert dict(compiled.explain().traces[0].operators).keys() <= {"aten.view.default", "aten.sym_size.int"}


def test_inputs_that_decide_shapes_need_no_trace_per_value():
    node = helper.make_node("Reshape", ["x", "shape"], ["out"])
    compiled = staticrt.from_onnx(
        model([node], [("x", FLOAT, ["n", "m"]), ("shape", INT64, [2])], [("out", FLOAT, None)])
    )
    x = torch.arange(24.0).reshape(4, 6)
    for shape in ((6, 4), (3, 8), (8, 3), (2, 12), (12, 2)):
        torch.testing.assert_close(compiled(x, torch.tensor(shape)), x.reshape(shape))
    assert len(compiled.explain().traces) <= 2
    assert not compiled.explain().eager


def test_a_branch_on_data_is_one_graph():
    then = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["squared"])], "then", [],
        [helper.make_tensor_value_info("squared", FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["negative"])], "else", [],
        [helper.make_tensor_value_info("negative", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "limit"], ["large"]),
        helper.make_node("If", ["large"], ["out"], then_branch=then, else_branch=other),
    ]
    compiled = staticrt.from_onnx(
        model(nodes, [("x", FLOAT, ["n"])], [("out", FLOAT, ["n"])], [("limit", np.array(0, np.float32))])
    )
    for x in (torch.ones(3), -torch.ones(3), torch.ones(5)):
        torch.testing.assert_close(compiled(x), x * x if x.sum() > 0 else -x)
    compiled_once(compiled)


def loop_model(outputs):
    """Adds the iteration's number to x, `trips` times; collects each sum."""
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
            helper.make_node("Add", ["state", "number"], ["next"]),
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, None),
        ],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in
         (("still", TensorProto.BOOL), ("next", FLOAT), ("row", FLOAT))][: 1 + outputs],
    )  # fmt: skip
    names = ["last", "rows"][:outputs]
    nodes = [
        helper.make_node("Size", ["count"], ["trips"]),
        helper.make_node("Loop", ["trips", "", "x"], names, body=body),
    ]
    return model(
        nodes, [("x", FLOAT, ["n"]), ("count", FLOAT, ["k"])], [(name, FLOAT, None) for name in names]
    )


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_loop_over_a_symbolic_count_is_one_graph(outputs):
    compiled = staticrt.from_onnx(loop_model(outputs))
    for n, trips in ((3, 4), (2, 7), (3, 2), (1, 1)):
        x = torch.randn(n)
        rows, state = [], x
        for i in range(trips):
            state = state + i
            rows.append(state)
        found = compiled(x, torch.zeros(trips))
        torch.testing.assert_close(found if outputs == 1 else found[0], state)
        if outputs == 2:
            torch.testing.assert_close(found[1], torch.stack(rows))
    compiled_once(compiled)


def test_model_local_functions_are_expanded_with_their_attributes():
    body = helper.make_node("LeakyRelu", ["a"], ["b"])
    reference = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    body.attribute.append(reference)
    function = helper.make_function(
        "mine", "Leak", ["a"], ["b"], [body], [helper.make_opsetid("", 20)], attributes=["slope"]
    )
    nodes = [helper.make_node("Leak", ["x"], ["out"], domain="mine", slope=0.25)]
    compiled = staticrt.from_onnx(
        model(nodes, [("x", FLOAT, [3])], [("out", FLOAT, [3])], functions=[function], domains=["mine"])
    )
    x = torch.tensor([-4.0, 0, 4])
    torch.testing.assert_close(compiled(x), torch.tensor([-1.0, 0, 4]))


def test_unsupported_operators_are_named_all_at_once():
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["y"], name="first"),
        helper.make_node("Nonsense", ["y"], ["out"], name="second", domain="nowhere"),
    ]
    broken = model(nodes, [("x", FLOAT, [1])], [("out", FLOAT, [1])], domains=["nowhere"])
    with pytest.raises(
        OnnxError, match=r"StringNormalizer \(opset 20\) at .*'first'.*nowhere.Nonsense \(opset 1\)"
    ):
        staticrt.from_onnx(broken)


def test_a_newer_operator_set_is_refused():
    with pytest.raises(OnnxError, match="operator set 99"):
        staticrt.from_onnx(model([], [("x", FLOAT, [1])], [("x", FLOAT, [1])], opset=99))


def test_an_error_in_the_run_names_the_node():
    nodes = [helper.make_node("Add", ["x", "y"], ["out"], name="the_sum")]
    compiled = staticrt.from_onnx(
        model(nodes, [("x", FLOAT, ["n"]), ("y", FLOAT, ["m"])], [("out", FLOAT, ["k"])])
    )
    with pytest.raises(OnnxError, match=r"(?s)Add failed: .*at:  Add 'the_sum'"):
        compiled(torch.ones(2), torch.ones(3))
    torch.testing.assert_close(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))


def test_damaged_files_give_one_clear_error(tmp_path):
    data = linear().SerializeToString()
    with pytest.raises(OnnxError, match="cannot read"):
        staticrt.from_onnx(tmp_path / "missing.onnx")
    for broken in (b"", b"\x80\x04\x95not a model", data[: len(data) // 2], b"\xff" * 100):
        with pytest.raises(OnnxError):
            staticrt.from_onnx(broken)
    rng = np.random.default_rng(1)
    for _ in range(300):  # any byte changed: it loads, or it says why not
        changed = bytearray(data)
        changed[rng.integers(len(data))] = rng.integers(256)
        try:
            compiled = staticrt.from_onnx(bytes(changed))
            compiled(**{name: torch.ones(2, 4) for name in compiled.input_names})
        except (OnnxError, InputError):
            pass


def external(tmp_path, location):
    proto = linear()
    tensor = proto.graph.initializer[0]
    (tmp_path / "model").mkdir(exist_ok=True)
    onnx.external_data_helper.set_external_data(tensor, location)
    (tmp_path / "model" / "weights.bin").write_bytes(tensor.raw_data)
    (tmp_path / "secret.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    path = tmp_path / "model" / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_are_read_from_beside_the_file_only(tmp_path):
    x = torch.randn(2, 4)
    path = external(tmp_path, "weights.bin")
    np.testing.assert_allclose(staticrt.from_onnx(path)(x), expected(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(OnnxError, match="external data"):
        staticrt.from_onnx(path.read_bytes())
    for wrong in ("../secret.bin", str(tmp_path / "secret.bin"), "missing.bin", ""):
        with pytest.raises(OnnxError):
            staticrt.from_onnx(external(tmp_path, wrong))
    os.symlink(tmp_path / "secret.bin", tmp_path / "model" / "link.bin")
    with pytest.raises(OnnxError, match="outside"):
        staticrt.from_onnx(external(tmp_path, "link.bin"))


def test_truncated_external_data_are_refused(tmp_path):
    path = external(tmp_path, "weights.bin")
    (tmp_path / "model" / "weights.bin").write_bytes(b"\0" * 8)
    with pytest.raises(OnnxError):
        staticrt.from_onnx(path)


def test_explain_names_the_nodes_of_the_model():
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Shape", ["where"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["out"]),
    ]
    compiled = staticrt.from_onnx(model(nodes, [("x", FLOAT, ["n"])], [("out", FLOAT, None)]))
    assert compiled(torch.tensor([1.0, 0, 2])).shape == (1, 2)
    graph = compiled._executor.snapshot().traces[0].traced.module.graph
    traces = [node.meta.get("stack_trace", "") for node in graph.nodes if "nonzero" in str(node.target)]
    assert any("in NonZero" in trace for trace in traces)


def test_copies_and_pickles_stay_models():
    import copy
    import pickle

    compiled = staticrt.from_onnx(linear())
    x = torch.randn(2, 4)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        np.testing.assert_allclose(other(x.numpy()), expected(x), rtol=1e-5, atol=1e-6)


def written_out(names):
    """What exporters write for gelu and RMS norm; scalars as initializers or as constants."""
    values = {"root": 2**0.5, "one": 1.0, "half": 0.5, "two": 2.0, "eps": 1e-6}
    nodes = [
        ("Div", ["x", "root"], "a"), ("Erf", ["a"], "b"), ("Add", ["b", "one"], "c"), ("Mul", ["x", "c"], "d"),
        ("Mul", ["d", "half"], "y"),
        ("Pow", ["y", "two"], "e"), ("ReduceMean", ["e"], "f"), ("Add", ["f", "eps"], "g"), ("Sqrt", ["g"], "h"),
        ("Div", ["one", "h"], "i"), ("Mul", ["y", "i"], "out"),
    ]  # fmt: skip
    tensors = [onnx.numpy_helper.from_array(np.float32(v), k) for k, v in values.items()]
    made = [helper.make_node(k, i, [o], **({"axes": [-1]} if k == "ReduceMean" else {})) for k, i, o in nodes]
    if names == "constants":
        made = [helper.make_node("Constant", [], [t.name], value=t) for t in tensors] + made
    graph = helper.make_graph(
        made, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 64])],
        tensors if names == "initializers" else [],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("names", ["initializers", "constants"])
def test_patterns_of_exporters_are_recognised(names):
    compiled = staticrt.from_onnx(written_out(names))
    for rows in (3, 8, 3):
        x = torch.randn(rows, 64)
        y = torch.nn.functional.gelu(x)
        want = y / (y.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
    report = str(compiled.explain())
    assert "outside the runtime" not in report
    assert "aten.gelu.default ×1" in report
    assert "aten.rms_norm.default ×1" in report
    assert not compiled.state_dict()


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_kernel_shape_that_is_not_the_weights_is_refused(operator):
    weight = np.ones((2, 2, 3, 3), dtype=np.float32)
    node = helper.make_node(operator, ["x", "w"], ["y"], kernel_shape=[2, 2])
    wrong = model([node], [("x", FLOAT, (1, 2, 8, 8))], [("y", FLOAT, None)], [("w", weight)])
    with pytest.raises(OnnxError, match=r"kernel_shape is \[2, 2\], the weight's is \[3, 3\]"):
        staticrt.from_onnx(wrong)(torch.zeros(1, 2, 8, 8))
