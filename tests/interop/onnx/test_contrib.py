"""ONNX Runtime's own operators, compared with ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import helper

import staticrt

ort = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

rng = np.random.default_rng(0)
MS = "com.microsoft"


def f(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def i32(values):
    return np.array(values, np.int32)


MASK = i32([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
B, S, H, N = 2, 5, 8, 2
COS, SIN = np.cos(f(16, 2)), np.sin(f(16, 2))
IDS = rng.integers(0, 9, (B, S)).astype(np.int32)
IMAGE = (f(1, 3, 6, 6), f(4, 3, 3, 3), f(4))
U8, S8 = rng.integers(0, 255, (3, 8)).astype(np.uint8), rng.integers(-128, 127, (8, 4)).astype(np.int8)
# name: operator, domain, inputs (None: left out), attributes, number of outputs
CASES = {
    "matmul": ("FusedMatMul", MS, [f(2, 3, 4), f(2, 4, 5)], {"alpha": 0.5}, 1),
    "matmul, transposed": ("FusedMatMul", MS, [f(2, 4, 3), f(2, 5, 4)], {"transA": 1, "transB": 1}, 1),
    "matmul, batch": ("FusedMatMul", MS, [f(3, 2, 4), f(2, 4, 5)], {"transBatchA": 1}, 1),
    "gelu": ("Gelu", MS, [f(3, 8)], {}, 1),
    "bias gelu": ("BiasGelu", MS, [f(3, 8), f(8)], {}, 1),
    "fast gelu": ("FastGelu", MS, [f(3, 8)], {}, 1),
    "fast gelu, bias": ("FastGelu", MS, [f(3, 8), f(8)], {}, 1),
    "quick gelu": ("QuickGelu", MS, [f(3, 8)], {"alpha": 1.5}, 1),
    "layer norm": ("LayerNormalization", "", [f(3, 8), f(8), f(8)], {"axis": -1, "epsilon": 1e-5}, 1),
    "simplified norm": ("SimplifiedLayerNormalization", "", [f(3, 8), f(8)], {"epsilon": 1e-6}, 1),
    "skip norm": ("SkipLayerNormalization", MS, [f(B, S, H), f(B, S, H), f(H), f(H), f(H)], {}, 1),
    "skip norm, sum": (
        "SkipLayerNormalization",
        MS,
        [f(B, S, H), f(1, S, H), f(H), f(H), None],
        {"epsilon": 1e-5},
        (1, 0, 0, 1),
    ),
    "skip simplified": (
        "SkipSimplifiedLayerNormalization",
        MS,
        [f(B, S, H), f(B, S, H), f(H), f(H)],
        {"epsilon": 1e-6},
        (1, 0, 0, 1),
    ),
    "embed": (
        "EmbedLayerNormalization",
        MS,
        [IDS, IDS % 2, f(9, H), f(7, H), f(2, H), f(H), f(H), MASK],
        {},
        2,
    ),
    "embed, no segments": (
        "EmbedLayerNormalization",
        MS,
        [IDS, None, f(9, H), f(7, H), None, f(H), f(H)],
        {},
        2,
    ),
    "attention": ("Attention", MS, [f(B, S, H), f(H, 3 * H), f(3 * H)], {"num_heads": N}, 1),
    "attention, mask": ("Attention", MS, [f(B, S, H), f(H, 3 * H), f(3 * H), MASK], {"num_heads": N}, 1),
    "attention, lengths": (
        "Attention",
        MS,
        [f(B, S, H), f(H, 3 * H), f(3 * H), i32([5, 3])],
        {"num_heads": N},
        1,
    ),
    "attention, ends and begins": (
        "Attention",
        MS,
        [f(B, S, H), f(H, 3 * H), f(3 * H), i32([5, 4, 0, 1])],
        {"num_heads": N},
        1,
    ),
    "attention, 3d mask": (
        "Attention",
        MS,
        [f(B, S, H), f(H, 3 * H), f(3 * H), np.tril(np.ones((B, S, S), np.int32))],
        {"num_heads": N},
        1,
    ),
    "attention, causal": (
        "Attention",
        MS,
        [f(B, S, H), f(H, 3 * H), f(3 * H)],
        {"num_heads": N, "unidirectional": 1, "scale": 0.4},
        2,
    ),
    "attention, past": (
        "Attention",
        MS,
        [f(B, S, H), f(H, 3 * H), f(3 * H), None, f(2, B, N, 3, H // N)],
        {"num_heads": N, "unidirectional": 1},
        2,
    ),
    "heads": (
        "MultiHeadAttention",
        MS,
        [f(B, S, H), f(B, 4, H), f(B, 4, H), f(3 * H)],
        {"num_heads": N},
        1,
    ),
    "heads, mask": (
        "MultiHeadAttention",
        MS,
        [f(B, S, H), f(B, S, H), f(B, S, H), None, MASK],
        {"num_heads": N},
        1,
    ),
    "heads, past": (
        "MultiHeadAttention",
        MS,
        [f(B, 1, H), f(B, 1, H), f(B, 1, H), None, None, None, f(B, N, 3, H // N), f(B, N, 3, H // N)],
        {"num_heads": N},
        3,
    ),
    "heads, added": (
        "MultiHeadAttention",
        MS,
        [f(B, S, H), f(B, S, H), f(B, S, H), None, None, f(B, N, S, S)],
        {"num_heads": N, "scale": 0.3},
        1,
    ),
    "rotary": (
        "RotaryEmbedding",
        MS,
        [f(B, S, H), np.array([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]), COS, SIN],
        {},
        1,
    ),
    "rotary, interleaved": (
        "RotaryEmbedding",
        MS,
        [f(B, N, S, 4), np.array([3]), COS, SIN],
        {"interleaved": 1},
        1,
    ),
    "rotary, partial": (
        "RotaryEmbedding",
        MS,
        [f(B, N, S, 8), np.array([3]), COS, SIN],
        {"rotary_embedding_dim": 4, "num_heads": N},
        1,
    ),
    "conv": ("FusedConv", MS, list(IMAGE), {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
    "conv, leaky": (
        "FusedConv",
        MS,
        list(IMAGE),
        {"activation": "LeakyRelu", "activation_params": [0.2]},
        1,
    ),
    "conv, sum": ("FusedConv", MS, [*IMAGE, f(1, 4, 4, 4)], {"activation": "Relu"}, 1),
    "conv, clip": (
        "FusedConv",
        MS,
        list(IMAGE),
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        1,
    ),
    "gemm": ("FusedGemm", MS, [f(3, 4), f(5, 4), f(5)], {"transB": 1, "activation": "Relu"}, 1),
    "integer": (
        "MatMulIntegerToFloat",
        MS,
        [U8, S8, np.float32(0.02), np.float32(0.03), np.uint8(7), np.int8(0), f(4)],
        {},
        1,
    ),
    "dynamic": ("DynamicQuantizeMatMul", MS, [f(3, 8), S8, np.float32(0.03), np.int8(0), f(4)], {}, 1),
}
FAR = {"dynamic": 0.05}  # half a step of the quantisation, where a value lies between two


def make(name):
    operator, domain, values, attributes, outputs = CASES[name]
    wanted = (1,) * outputs if isinstance(outputs, int) else outputs
    names = ["" if value is None else f"in{i}" for i, value in enumerate(values)]
    results = [f"out{i}" if want else "" for i, want in enumerate(wanted)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype), list(np.shape(value))
        )
        for name, value in zip(names, values, strict=True)
        if value is not None
    ]
    kinds = [
        onnx.TensorProto.INT32 if name == "out1" and operator.startswith("Embed") else 1 for name in results
    ]
    graph = helper.make_graph(
        [node],
        "contrib",
        inputs,
        [helper.make_tensor_value_info(r, k, None) for r, k in zip(results, kinds, strict=True) if r],
    )
    imports = [helper.make_opsetid("", 16), helper.make_opsetid(MS, 1)]
    feed = {name: np.asarray(v) for name, v in zip(names, values, strict=True) if v is not None}
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feed


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_onnx_runtime_gives(name):
    model, feed = make(name)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, feed)
    compiled = staticrt.from_onnx(model)
    for _ in range(2):
        found = compiled(**feed)
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(expected)
        for got, want in zip(found, expected, strict=True):
            tolerance = FAR.get(name, 2e-5)
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=tolerance)
    assert not compiled.explain().eager
