"""External data, empty tensors and unusual element types."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import staticrt
from staticrt.errors import OnnxError

WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def model_with_external(folder, **entries):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.dims.extend(WEIGHT.shape)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor],
    )
    path = folder / "model.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9
        ).SerializeToString()
    )
    return staticrt.from_onnx(path)


@pytest.mark.parametrize("length", [None, WEIGHT.nbytes])
def test_external_data_among_others_need_no_length(tmp_path, length):
    (tmp_path / "data").write_bytes(b"before" + WEIGHT.tobytes() + b"after")
    model = model_with_external(tmp_path, location="data", offset=6, **({"length": length} if length else {}))
    x = torch.randn(2, 4)
    torch.testing.assert_close(model(x), x @ torch.from_numpy(WEIGHT))


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../data"},
        {"location": "missing"},
        {"location": ""},
        {},
        {"location": "data", "offset": -4},
        {"location": "data", "offset": 8},
        {"location": "data", "offset": "x"},
        {"location": "data", "length": 10**12},
        {"location": "data", "length": 5},
        {"location": "."},
        {"location": "link"},
    ],
    ids=str,
)
def test_external_data_that_are_not_there_are_refused(tmp_path, entries):
    (tmp_path / "data").write_bytes(WEIGHT.tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "data").write_bytes(WEIGHT.tobytes())
    (inner / "link").symlink_to(tmp_path / "data")
    with pytest.raises(OnnxError, match="'w'"):
        model_with_external(inner, **entries)


def run(operator, *arrays, outputs=1, **attributes):
    names = [f"in{index}" for index in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), list(value.shape))
        for name, value in zip(names, arrays, strict=True)
    ]
    results = [f"out{index}" for index in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(operator, names, results, **attributes)],
        "g",
        infos,
        [onnx.helper.make_empty_tensor_value_info(name) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return staticrt.from_onnx(model)(*arrays)


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_recurrent_layer_of_nothing(steps, batch, direction):
    count = 2 if direction == "bidirectional" else 1
    y, h, c = run(
        "LSTM", zeros(steps, batch, 3), zeros(count, 16, 3), zeros(count, 16, 4), outputs=3, hidden_size=4,
        direction=direction,
    )  # fmt: skip
    assert y.shape == (steps, count, batch, 4)
    assert h.shape == c.shape == (count, batch, 4)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_relu_of_unsigned_integers(dtype):
    x = np.array([0, 1, np.iinfo(dtype).max], dtype)
    np.testing.assert_array_equal(run("Relu", x).numpy(), x)


def test_a_quotient_of_complex_numbers():
    x, y = np.array([1 + 2j, 3], np.complex64), np.array([2j, 1 - 1j], np.complex64)
    np.testing.assert_allclose(run("Div", x, y).numpy(), x / y, rtol=1e-6)
