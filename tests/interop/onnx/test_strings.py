"""Tensors of strings, compared with ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import staticrt
from staticrt.errors import OnnxError
from tests.support.onnx_ml_models import ML, WORDS, check


def string_model(nodes, inputs, outputs, initializers=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.STRING, ["n", *s]) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_strings_are_moved_and_come_back_as_the_caller_wrote_them():
    words = helper.make_tensor("words", TensorProto.STRING, [1, 2], [b"x", b"y"])
    one = onnx.numpy_helper.from_array(np.array([1], np.int64), "one")
    model = string_model(
        [
            helper.make_node("Expand", ["words", "shape"], ["wide"]),
            helper.make_node("Shape", ["a"], ["shape"]),
            helper.make_node("Concat", ["a", "wide"], ["both"], axis=1),
            helper.make_node("Gather", ["both", "one"], ["second"], axis=1),
            helper.make_node("Transpose", ["both"], ["turned"]),
        ],
        {"a": [2]},
        {"second": TensorProto.STRING, "turned": TensorProto.STRING},
        [words, one],
    )
    model.graph.node.insert(0, model.graph.node.pop(1))
    check(model, [WORDS])


def test_texts_that_the_model_does_not_know_are_compared_with_each_other():
    model = string_model(
        [helper.make_node("Equal", ["a", "b"], ["same"])], {"a": [2], "b": [2]}, {"same": TensorProto.BOOL}
    )
    other = np.array([["a", "?"], ["new", "unknown"], ["ä", "a"]], dtype=object)
    compiled = check(model, [WORDS, other])
    assert compiled(WORDS.tolist(), other.astype(str)).tolist() == (other == WORDS).tolist()


def test_what_is_no_string_is_told():
    model = string_model([helper.make_node("Identity", ["a"], ["b"])], {"a": [2]}, {"b": TensorProto.STRING})
    compiled = staticrt.from_onnx(model)
    with pytest.raises(staticrt.errors.InputError, match="input 'a' is strings: expected strings, got int"):
        compiled([[1, 2]])


def test_an_operator_that_cannot_take_strings_is_named():
    model = string_model([helper.make_node("Cast", ["a"], ["b"], to=1)], {"a": [2]}, {"b": TensorProto.FLOAT})
    with pytest.raises(OnnxError, match=r"Cast of strings is not supported\n  at:  Cast 'b'"):
        staticrt.from_onnx(model)(WORDS)
