"""Recurrent layers, scans and resizing for sizes that stay symbolic, against ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import staticrt

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(0)


def weights(*shape):
    return RNG.standard_normal(shape).astype(np.float32) * 0.3


def single(node, shape, initializers, outputs=1):
    graph = helper.make_graph(
        [node],
        "test",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in node.output[:outputs]],
        [onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def recurrent(kind, gates, direction, **attributes):
    count = 2 if direction == "bidirectional" else 1
    state = {
        "w": weights(count, gates * 5, 3),
        "r": weights(count, gates * 5, 5),
        "b": weights(count, gates * 10),
    }
    node = helper.make_node(
        kind, ["x", "w", "r", "b"], ["y", "h"], hidden_size=5, direction=direction, **attributes
    )
    return single(node, ["time", "batch", 3], state, outputs=2)


def resize(mode, transform, **attributes):
    scales = {"scales": np.array([1, 1, 1.5, 2], np.float32)}
    node = helper.make_node(
        "Resize",
        ["x", "", "scales"],
        ["y"],
        mode=mode,
        coordinate_transformation_mode=transform,
        **attributes,
    )
    return single(node, ["n", 2, "h", "w"], scales)


SEQUENCES = [(12, 2, 3), (20, 4, 3), (9, 3, 3)]
IMAGES = [(2, 2, 6, 8), (3, 2, 10, 5), (2, 2, 4, 4)]
CASES = {
    "lstm": (recurrent("LSTM", 4, "forward"), SEQUENCES),
    "lstm reverse": (recurrent("LSTM", 4, "reverse"), SEQUENCES),
    "lstm both, clipped": (recurrent("LSTM", 4, "bidirectional", clip=0.5), SEQUENCES),
    "gru": (recurrent("GRU", 3, "bidirectional"), SEQUENCES),
    "gru, torch's": (recurrent("GRU", 3, "forward", linear_before_reset=1), SEQUENCES),
    "rnn": (recurrent("RNN", 1, "reverse"), SEQUENCES),
    "nearest": (resize("nearest", "asymmetric", nearest_mode="floor"), IMAGES),
    "linear": (resize("linear", "half_pixel"), IMAGES),
    "cubic": (resize("cubic", "half_pixel"), IMAGES),
    "corners": (resize("linear", "align_corners"), IMAGES),
}


@pytest.mark.parametrize("case", CASES)
def test_one_trace_equals_onnx_runtime(case):
    model, shapes = CASES[case]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    compiled = staticrt.from_onnx(model)
    for shape in shapes:
        x = RNG.standard_normal(shape).astype(np.float32)
        found = compiled(torch.from_numpy(x))
        found = found if isinstance(found, tuple) else (found,)
        for have, want in zip(found, session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


def test_a_resize_to_sizes_of_the_call_leaves_batch_and_channels_alone():
    """Sizes that two shapes name are told apart from those that change: only rows and columns are picked."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["front"], start=0, end=2),
        helper.make_node("Shape", ["like"], ["back"], start=2, end=4),
        helper.make_node("Concat", ["front", "back"], ["sizes"], axis=0),
        helper.make_node(
            "Resize",
            ["r", "", "", "sizes"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "c", "h", "w"]),
            helper.make_tensor_value_info("like", TensorProto.FLOAT, ["n", "c", "H", "W"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = staticrt.from_onnx(proto)
    for n, c, small, large in ((2, 3, (4, 5), (8, 10)), (3, 2, (5, 7), (13, 9)), (1, 4, (2, 3), (2, 94))):
        x, like = torch.randn(n, c, *small), torch.randn(n, c, *large)
        (want,) = session.run(None, {"x": x.numpy(), "like": like.numpy()})
        np.testing.assert_array_equal(ours(x, like), want)
    (trace,) = ours.explain().traces
    assert dict(trace.operators)["aten.index_select.default"] == 2
