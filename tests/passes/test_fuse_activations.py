import math

import pytest
import torch

from staticrt.passes.fuse_activations import FuseActivations

aten = torch.ops.aten
GELU, SILU = aten.gelu.default, aten.silu.default
ROOT = math.sqrt(2 / math.pi)


def onnx_order(x):
    return x * (0.5 * (torch.erf(x / 1.4142135381698608) + 1.0))


def torchscript_order(x):
    return x * (torch.erf(x / math.sqrt(2)) + 1.0) * 0.5


def halved_first(x):
    return (x * 0.5) * (1.0 + torch.erf(x * math.sqrt(0.5)))


def tanh_of_a_cube(x):
    return 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0))))


def tanh_of_products(x):
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def silu(x):
    return torch.sigmoid(x) * x


@pytest.mark.parametrize(
    ("function", "target"),
    [
        (onnx_order, GELU),
        (torchscript_order, GELU),
        (halved_first, GELU),
        (tanh_of_a_cube, GELU),
        (tanh_of_products, GELU),
        (silu, SILU),
    ],
)
def test_an_activation_written_out_becomes_one_call(trace, function, target):
    graph = trace(lambda x: function(x) + 1, [torch.randn(3, 16)])
    assert graph.run(FuseActivations(), [torch.linspace(-12, 12, 48).view(3, 16)]).changed
    graph.gm.graph.eliminate_dead_code()
    assert graph.count(target) == 1
    assert len(graph.targets()) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (0.5 * (torch.erf(x / 1.5) + 1.0)),  # another scale
        lambda x: x * (0.4 * (torch.erf(x / math.sqrt(2)) + 1.0)),
        lambda x: x * (0.5 * (torch.erf(x / math.sqrt(2)) + 2.0)),
        lambda x: (x + 1) * (0.5 * (torch.erf(x / math.sqrt(2)) + 1.0)),  # of something else
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.05 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 2.0)))),
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: 2 * x * torch.sigmoid(x),
        lambda x: (g := torch.sigmoid(x)) * x + g,  # the gate is read elsewhere
        lambda x: torch.div(x, math.sqrt(2), rounding_mode="floor").erf().add(1).mul(x).mul(0.5),
    ],
)
def test_what_is_another_function_stays(trace, function):
    graph = trace(function, [torch.randn(3, 16)])
    graph.run(FuseActivations(), [torch.linspace(-3, 3, 48).view(3, 16)])
    assert graph.count(GELU) == 0
    if graph.count(SILU):  # 2 * silu(x) is one
        torch.testing.assert_close(graph.gm(torch.ones(3, 16))[0], function(torch.ones(3, 16)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_round_elsewhere_and_stay(trace, dtype):
    graph = trace(onnx_order, [torch.randn(3, 16, dtype=dtype)])
    assert not graph.run(FuseActivations()).changed
