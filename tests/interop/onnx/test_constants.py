"""Arithmetic on numbers known at trace gives what tensors give."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import staticrt

LEAST = np.iinfo(np.int64).min
CASES = [
    ("Max", [np.float32(1), np.float32(np.nan)]),
    ("Min", [np.float32(np.nan), np.float32(1)]),
    ("Abs", [np.int64(LEAST)]),
    ("Neg", [np.int64(LEAST)]),
    ("Add", [np.int64(np.iinfo(np.int64).max), np.int64(1)]),
    ("Mul", [np.int32(2**30), np.int32(6)]),
    ("Sub", [np.uint8(3), np.uint8(5)]),
]


@pytest.mark.parametrize(("operator", "values"), CASES, ids=[case[0] for case in CASES])
def test_a_constant_beside_a_tensor(operator, values):
    dtype = helper.np_dtype_to_tensor_dtype(values[0].dtype)
    names = [f"c{index}" for index in range(len(values))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["k"]), helper.make_node("Where", ["x", "k", "k"], ["y"])],
        "constants",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, ["n"])],
        [helper.make_tensor_value_info("y", dtype, ["n"])],
        [numpy_helper.from_array(np.array(value), name) for name, value in zip(names, values, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = np.array([True, False])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(staticrt.from_onnx(model)(x).numpy(), session.run(None, {"x": x})[0])
