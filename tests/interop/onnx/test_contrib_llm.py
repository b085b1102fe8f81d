"""ONNX Runtime's operators of quantised models, compared with ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import staticrt
from staticrt.errors import OnnxError

ort = pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
MS = "com.microsoft"
rng = np.random.default_rng(0)


def f(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def u8(*shape, high=256):
    return rng.integers(0, high, shape).astype(np.uint8)


def run_both(operator, inputs, outputs=1, fixed=(), domain=MS, rtol=1e-4, atol=2e-5, **attributes):
    """Run one node in both; inputs numbered in `fixed` are initializers."""
    names = [f"in{i}" if v is not None else "" for i, v in enumerate(inputs)]
    node = helper.make_node(operator, names, [f"out{i}" for i in range(outputs)], domain=domain, **attributes)
    given = [(n, v) for i, (n, v) in enumerate(zip(names, inputs, strict=True)) if n and i not in fixed]
    graph = helper.make_graph(
        [node],
        "contrib",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), None) for n, v in given],
        [helper.make_empty_tensor_value_info(f"out{i}") for i in range(outputs)],
        [onnx.numpy_helper.from_array(inputs[i], names[i]) for i in fixed if inputs[i] is not None],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(given))
    compiled = staticrt.from_onnx(model)
    for _ in range(2):
        found = compiled(**dict(given))
        found = found if isinstance(found, tuple) else (found,)
        for got, want in zip(found, expected, strict=True):
            assert got.numpy().dtype == want.dtype
            np.testing.assert_allclose(got.numpy(), want, rtol=rtol, atol=atol)
    assert not compiled.explain().eager
    assert "outside the runtime" not in str(compiled.explain())


@pytest.mark.parametrize(("bits", "zero"), [(4, None), (4, "packed"), (4, "float"), (8, None), (8, "packed")])
@pytest.mark.parametrize("k", [64, 80])
def test_matmul_n_bits(bits, zero, k):
    n, block = 12, 32
    blocks = -(-k // block)
    b = u8(n, blocks, block * bits // 8)
    packed = -(-blocks * bits // 8)
    zeros = {None: None, "packed": u8(n, packed).reshape(-1), "float": (f(n, blocks) + 7).reshape(-1)}[zero]
    inputs = [f(2, 3, k), b, np.abs(f(n * blocks)) / 8, zeros]
    run_both("MatMulNBits", inputs, fixed=(1, 2, 3), K=k, N=n, bits=bits, block_size=block, atol=2e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_matmul_n_bits_with_a_bias(bias):
    inputs = [f(5, 32), u8(6, 2, 8), np.abs(f(12)), None, None, f(6) if bias else None]
    fixed = (1, 2, 5) if bias else (1, 2)
    run_both("MatMulNBits", inputs, fixed=fixed, K=32, N=6, bits=4, block_size=16, atol=2e-4)


@pytest.mark.parametrize("zero", [False, True])
def test_rows_of_a_quantised_table(zero):
    inputs = [u8(10, 32), rng.integers(0, 10, (2, 3)), np.abs(f(10, 2)), u8(10, 1) if zero else None]
    run_both(
        "GatherBlockQuantized", inputs, fixed=(0, 2, 3), bits=4, block_size=32, gather_axis=0, quantize_axis=1
    )


HEADS, KV, SIZE = 4, 2, 16
COS, SIN = np.cos(f(32, SIZE // 2)), np.sin(f(32, SIZE // 2))


def attention(length, past, filled, room=None, packed=False, rotary=True):
    """Inputs of GroupQueryAttention: `past` rows of cache of which the last call filled some, `filled` after this."""
    batch = len(filled)
    q, k, v = f(batch, length, HEADS * SIZE), f(batch, length, KV * SIZE), f(batch, length, KV * SIZE)
    if packed:
        q, k, v = np.concatenate([q, k, v], -1), None, None
    cache = [f(batch, KV, past if room is None else room, SIZE) for _ in range(2)]
    total = np.array(max(filled), np.int32)
    lengths = np.array(filled, np.int32) - 1
    return [q, k, v, *cache, lengths, total, *((COS, SIN) if rotary else (None, None))]


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 5), (3, 4)])
def test_group_query_attention(length, past, rotary, interleaved):
    batch = 1 if length > 1 and past else 2  # ONNX Runtime takes no larger one
    run_both(
        "GroupQueryAttention", attention(length, past, [length + past] * batch, rotary=bool(rotary)), 3,
        num_heads=HEADS, kv_num_heads=KV, do_rotary=rotary, rotary_interleaved=interleaved,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{"local_window_size": 3}, {"softcap": 5.0}, {"smooth_softmax": 1}, {"scale": 0.3}],
    ids=lambda o: next(iter(o)),
)
def test_options_of_group_query_attention(options):
    for length, past in ((6, 0), (1, 5)):
        run_both(
            "GroupQueryAttention", attention(length, past, [length + past] * 2), 3,
            num_heads=HEADS, kv_num_heads=KV, do_rotary=1, **options,
        )  # fmt: skip


def test_group_query_attention_of_packed_inputs_and_caches_of_unequal_length():
    run_both(
        "GroupQueryAttention",
        attention(1, 6, [7, 7], packed=True),
        3,
        num_heads=HEADS,
        kv_num_heads=KV,
        do_rotary=1,
    )
    inputs = attention(1, 6, [7, 4])
    want_rows = [(0, 7), (1, 4)]  # beyond its length a row of the cache is undefined
    compiled, expected = both_outputs(inputs)
    np.testing.assert_allclose(compiled[0], expected[0], rtol=1e-4, atol=2e-5)
    for batch, rows in want_rows:
        np.testing.assert_allclose(
            compiled[1][batch, :, :rows], expected[1][batch, :, :rows], rtol=1e-4, atol=2e-5
        )


def both_outputs(inputs):
    names = [f"in{i}" if v is not None else "" for i, v in enumerate(inputs)]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["a", "k", "v"],
        domain=MS,
        num_heads=HEADS,
        kv_num_heads=KV,
        do_rotary=1,
    )
    given = {n: v for n, v in zip(names, inputs, strict=True) if n}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), None)
        for n, v in given.items()
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in "akv"])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [t.numpy() for t in staticrt.from_onnx(model)(**given)], session.run(None, given)


def scale(value=0.05):
    return np.float32(value)


ZERO, SIGNED = np.uint8(120), np.int8(-5)


@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
def test_quantised_arithmetic(operator):
    a, b = u8(3, 8), u8(1, 8)
    run_both(
        operator,
        [a, scale(), ZERO, b, scale(0.03), np.uint8(7), scale(0.2), ZERO],
        fixed=(1, 2, 4, 5, 6, 7),
        atol=1,
    )


def test_quantised_functions_of_one_tensor():
    x = [u8(2, 4, 6, 6), scale(), ZERO, scale(0.02), ZERO]
    image = {"fixed": (1, 2, 3, 4), "atol": 1}
    run_both("QLinearSigmoid", x, **image)
    run_both("QLinearLeakyRelu", x, **image, alpha=0.2)
    run_both("QLinearGlobalAveragePool", x, **image)
    run_both("QLinearAveragePool", x, **image, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    run_both("QLinearSoftmax", x, **image, axis=-1, opset=13)
    parts = [scale(0.1), ZERO, u8(2, 3), scale(), ZERO, u8(2, 5), scale(0.07), np.uint8(3)]
    run_both("QLinearConcat", parts, fixed=(0, 1, 3, 4, 6, 7), atol=1, axis=1)


@pytest.mark.parametrize("real", [False, True])
def test_quantised_gemm(real):
    c = rng.integers(-999, 999, 5).astype(np.int32)
    # Two products fit 16 bits: ONNX Runtime adds pairs there, with saturation, on processors without VNNI.
    b = rng.integers(-64, 64, (5, 8)).astype(np.int8)
    inputs = [u8(3, 8), scale(), ZERO, b, np.abs(f(5)) / 50, np.zeros(5, np.int8), c]
    inputs += [None, None] if real else [scale(0.1), ZERO]
    fixed = (1, 2, 3, 4, 5, 6) if real else (1, 2, 3, 4, 5, 6, 7, 8)
    run_both("QGemm", inputs, fixed=fixed, atol=2e-5 if real else 1, transB=1)


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
def test_weights_of_four_bits_are_dequantised(kind):
    element = getattr(TensorProto, kind)
    values = rng.integers(-8, 8, (64, 6)) if kind == "INT4" else rng.integers(0, 16, (64, 6))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["real"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "real"], ["out"]),
    ]
    weight = helper.make_tensor("w", element, (64, 6), values.flatten().tolist())
    scales = onnx.numpy_helper.from_array(np.abs(f(4, 6)), "s")

    def make(nodes):
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 64])],
            [helper.make_empty_tensor_value_info("out")], [weight, scales],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    model = make(nodes)
    x = f(3, 64)
    # ONNX Runtime makes a product of 8 bits of it, which is less exact.
    want = x @ (values * np.repeat(onnx.numpy_helper.to_array(scales), 16, 0))
    np.testing.assert_allclose(staticrt.from_onnx(model)(x).numpy(), want, rtol=1e-4, atol=1e-4)
    with pytest.raises(OnnxError, match=f"Abs of the {kind} tensor 'w' is not supported"):
        staticrt.from_onnx(make([helper.make_node("Abs", ["w"], ["real"]), nodes[1]]))


@pytest.mark.parametrize("zero", [None, "packed"])
@pytest.mark.parametrize("k", [64, 80])
def test_weights_of_two_bits(zero, k):
    n, block = 12, 32
    blocks = -(-k // block)
    b = u8(n, blocks, block * 2 // 8)
    zeros = u8(n, -(-blocks * 2 // 8)).reshape(-1) if zero else None
    inputs = [f(2, 3, k), b, np.abs(f(n * blocks)) / 8, zeros]
    run_both("MatMulNBits", inputs, fixed=(1, 2, 3), K=k, N=n, bits=2, block_size=block, atol=2e-4)


def gqa(length, past, positions=False, bias=None, sink=False, rotary=1, **options):
    inputs = attention(length, past, [length + past] * (1 if length > 1 and past else 2), rotary=bool(rotary))
    batch = inputs[0].shape[0]
    # Of a prompt's positions, ONNX Runtime reads the first only and counts on from it.
    rows = np.arange(past, past + length)[::-1] if past else np.arange(length) + 3
    inputs.append(np.tile(rows, (batch, 1)) if positions else None)
    inputs.append(None if bias is None else f(*bias(batch, length, length + past)))
    inputs.append(f(HEADS) if sink else None)
    while inputs[-1] is None:
        inputs.pop()
    run_both("GroupQueryAttention", inputs, 3, num_heads=HEADS, kv_num_heads=KV, do_rotary=rotary, **options)


@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 5), (3, 4)])
@pytest.mark.parametrize(
    "bias", [lambda b, s, t: (b, HEADS, s, t), lambda b, s, t: (1, HEADS, s, t), lambda b, s, t: (b, 1, s, t)],
    ids=["full", "one for all rows", "one for all heads"],
)  # fmt: skip
def test_a_bias_is_added_to_the_scores(length, past, bias):
    gqa(length, past, bias=bias)


@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 5), (3, 4)])
def test_a_sink_per_head_takes_its_share(length, past):
    gqa(length, past, sink=True)


@pytest.mark.parametrize(("length", "past"), [(6, 0), (1, 5), (3, 4)])
def test_positions_are_the_callers(length, past):
    gqa(length, past, positions=True)


def test_all_at_once():
    for length, past in ((6, 0), (1, 5)):
        gqa(
            length, past, positions=True, bias=lambda b, s, t: (b, HEADS, s, t), sink=True, softcap=4.0,
            local_window_size=3,
        )  # fmt: skip
