"""Models whose nodes are in no order."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import staticrt


def _unordered(last_input):
    """y = relu(x * 2) - x, written from its end, with a branch that reads a value of later."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["double"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Sub", ["up", "x"], ["y"]),
        helper.make_node("Relu", ["chosen"], ["up"]),
        helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True))),
        helper.make_node("Add", ["x", last_input], ["double"], name="adds"),
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_nodes_in_any_order():
    x = torch.randn(5)
    assert torch.equal(staticrt.from_onnx(_unordered("x"))(x), torch.relu(x + x) - x)


def test_nodes_that_wait_for_each_other_are_refused():
    with pytest.raises(staticrt.errors.OnnxError, match="Sub reads a value that depends on its own result"):
        staticrt.from_onnx(_unordered("y"))
