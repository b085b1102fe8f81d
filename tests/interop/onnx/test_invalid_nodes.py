"""Nodes whose attributes or sizes do not fit are refused, by a message that names the node."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import staticrt
from staticrt.errors import OnnxError


def tensor(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def numbers(*values):
    """An initializer."""
    return (np.array(values, dtype=np.int64),)


def call(operator, inputs, outputs=1, opset=20, **attributes):
    """Run a model of one node called 'culprit'."""
    names, infos, initializers, arguments = [], [], [], []
    for index, value in enumerate(inputs):
        names.append("" if value is None else f"in{index}")
        if isinstance(value, tuple):
            initializers.append(numpy_helper.from_array(value[0], names[-1]))
        elif value is not None:
            dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
            infos.append(helper.make_tensor_value_info(names[-1], dtype, [None] * value.ndim))
            arguments.append(value)
    results = [f"out{index}" for index in range(outputs)]
    node = helper.make_node(operator, names, results, name="culprit", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        infos,
        [onnx.helper.make_empty_tensor_value_info(name) for name in results],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return staticrt.from_onnx(model)(*arguments)


X, W, R = tensor(5, 2, 3), tensor(1, 16, 3), tensor(1, 16, 4)
IMAGE, WEIGHT = tensor(2, 3, 8, 8), tensor(4, 3, 3, 3)

INVALID = [
    ("hidden_size is 5", "LSTM", [X, W, R], 3, {"hidden_size": 5}),
    ("hidden_size is -1", "LSTM", [X, W, R], 3, {"hidden_size": -1}),
    (r"W has shape \[1, 16, 3\]", "LSTM", [X, W, tensor(1, 16, 5)], 3, {}),
    (r"W has shape \[1, 16, 7\]", "LSTM", [X, tensor(1, 16, 7), R], 3, {"hidden_size": 4}),
    ("rank 3", "LSTM", [X, tensor(16, 3), R], 3, {"hidden_size": 4}),
    (r"B has shape \[1, 16\]", "LSTM", [X, W, R, tensor(1, 16)], 3, {"hidden_size": 4}),
    (r"sequence_lens has shape \[1\]", "LSTM", [X, W, R, None, np.array([5], np.int32)], 3, {}),
    (r"initial_h has shape \[1, 2, 5\]", "LSTM", [X, W, R, None, None, tensor(1, 2, 5)], 3, {}),
    ("layout 7", "LSTM", [X, W, R], 3, {"layout": 7}),
    ("unknown direction", "LSTM", [X, W, R], 3, {"direction": "sideways"}),
    ("activations", "LSTM", [X, W, R], 3, {"activations": ["Sigmoid"]}),
    ("hidden_size is 5", "GRU", [X, tensor(1, 12, 3), tensor(1, 12, 4)], 2, {"hidden_size": 5}),
    ("hidden_size is 3", "RNN", [X, tensor(1, 4, 3), tensor(1, 4, 4)], 2, {"hidden_size": 3}),
    ("num_outputs 0", "Split", [tensor(6, 2)], 2, {"num_outputs": 0}),
    ("num_outputs 3 has 2 outputs", "Split", [tensor(6, 2)], 2, {"num_outputs": 3}),
    ("num_outputs 2 and sizes", "Split", [tensor(6, 2), numbers(3, 3)], 2, {"num_outputs": 2}),
    ("has 2 outputs", "Split", [tensor(6, 2), numbers(2, 2, 2)], 2, {}),
    ("negative pads", "Conv", [IMAGE, WEIGHT], 1, {"pads": [-1, -1, -1, -1]}),
    (r"strides \[0, 1\]", "Conv", [IMAGE, WEIGHT], 1, {"strides": [0, 1]}),
    (r"dilations \[0, 0\]", "Conv", [IMAGE, WEIGHT], 1, {"dilations": [0, 0]}),
    ("in 0 groups", "Conv", [IMAGE, WEIGHT], 1, {"group": 0}),
    ("3 channels with a weight for 5", "Conv", [IMAGE, tensor(4, 5, 3, 3)], 1, {}),
    ("weight of rank 3", "Conv", [IMAGE, tensor(4, 3, 3)], 1, {}),
    (r"bias of shape \[7\]", "Conv", [IMAGE, WEIGHT, tensor(7)], 1, {}),
    ("are positive", "MaxPool", [IMAGE], 1, {"kernel_shape": [0, 0]}),
    ("spatial dimensions", "MaxPool", [IMAGE], 1, {"kernel_shape": [2]}),
    ("reach beyond", "MaxPool", [IMAGE], 1, {"kernel_shape": [2, 2], "pads": [5, 5, 5, 5]}),
    ("are positive", "AveragePool", [IMAGE], 1, {"kernel_shape": [3, 3], "strides": [0, 0]}),
    ("rank 3 and 2", "Gemm", [tensor(2, 3, 4), tensor(4, 5)], 1, {}),
    ("rank 2, not 1", "Reshape", [tensor(2, 3), (np.array([[3, 2]]),)], 1, {}),
    ("axis twice", "Unsqueeze", [tensor(2, 3), numbers(0, 0)], 1, {}),
    ("axis 7 of a tensor of rank 3", "Unsqueeze", [tensor(2, 3), numbers(7)], 1, {}),
    ("axis twice", "Slice", [tensor(2, 3), numbers(0, 0), numbers(2, 2), numbers(0, 0)], 1, {}),
    ("step 0", "Slice", [tensor(2, 3), numbers(0), numbers(2), numbers(0), numbers(0)], 1, {}),
    ("indices of torch.float32", "Gather", [tensor(2, 3), tensor(2)], 1, {}),
    ("updates", "ScatterElements", [tensor(2, 3), np.array([[0]]), tensor(2, 2)], 1, {}),
    ("two values", "OneHot", [np.array([1]), numbers(3), (tensor(3),)], 1, {}),
    ("rank 2, not 1", "Compress", [tensor(2, 3), np.ones((2, 2), bool)], 1, {"axis": 0}),
    ("unknown mode 'X'", "DepthToSpace", [tensor(1, 4, 2, 2)], 1, {"blocksize": 2, "mode": "X"}),
    ("blocksize 0", "SpaceToDepth", [tensor(1, 4, 2, 2)], 1, {"blocksize": 0}),
    ("unknown direction 'UP'", "BitShift", [np.ones(3, np.uint8), np.ones(3, np.uint8)], 1, {"direction": "UP"}),
    ("axis 2 of a tensor", "Softmax", [tensor(2, 3)], 1, {"axis": 2}),
    ("Not of torch.float32", "Not", [tensor(3)], 1, {}),
    ("output_height 0", "RoiAlign", [IMAGE, tensor(1, 4), np.array([0])], 1, {"output_height": 0}),
    ("scores", "NonMaxSuppression", [tensor(1, 5, 4), tensor(1, 1, 6), numbers(3)], 1, {}),
    ("STRING is not supported", "Cast", [tensor(2)], 1, {"to": onnx.TensorProto.STRING}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "operator", "inputs", "outputs", "attributes"), INVALID)
def test_it_is_refused_by_name(text, operator, inputs, outputs, attributes):
    with pytest.raises(OnnxError, match=text) as error:
        call(operator, inputs, outputs, **attributes)
    assert "culprit" in str(error.value)


def test_a_node_inside_of_a_function_names_the_call():
    with pytest.raises(OnnxError, match=r"Range .* in HannWindow 'culprit'"):
        call("HannWindow", [(np.array(-3),)])


def test_a_pool_whose_windows_are_dilated_may_pad_as_far_as_they_reach():
    found = call("MaxPool", [IMAGE], kernel_shape=[2, 2], dilations=[3, 3], pads=[3, 3, 3, 3], strides=[1, 1])
    assert found.shape == (2, 3, 11, 11)
