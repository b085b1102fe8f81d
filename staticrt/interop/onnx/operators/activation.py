"""Functions of one tensor, element by element or along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from staticrt.interop.onnx.arguments import Value, axis_of, expect, scalar, through_int64
from staticrt.interop.onnx.numbers import Numbers, Tensor
from staticrt.interop.onnx.registry import op

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Det": torch.linalg.det,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Reciprocal": torch.reciprocal,
    "Relu": lambda x: x if x.dtype in _UNSIGNED else torch.relu(x),
    "Round": torch.round,  # halves to even, as ONNX
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softsign": F.softsign,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "HardSwish": F.hardswish,
}


def _register(name: str, function: Callable[[Tensor], Tensor]) -> None:
    @op(name)
    def build(x: Tensor) -> Tensor:
        return function(x)


for _name, _function in _UNARY.items():
    _register(_name, _function)


# log(1 + exp(x)) without overflow
op("Softplus")(lambda x: torch.relu(x) + torch.log1p(torch.exp(-torch.abs(x))))
op("Elu")(lambda x, *, alpha=1.0: F.elu(x, alpha))
op("Celu", since=12)(lambda x, *, alpha=1.0: F.celu(x, alpha))


@op("Selu", since=6)
def selu(
    x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Tensor:
    return torch.where(x > 0, gamma * x, gamma * alpha * torch.expm1(x))


op("Selu")(lambda x, *, alpha=1.6732, gamma=1.0507: selu(x, alpha=alpha, gamma=gamma))
op("LeakyRelu")(lambda x, *, alpha=0.01: F.leaky_relu(x, alpha))
op("ThresholdedRelu")(lambda x, *, alpha=1.0: torch.where(x > alpha, x, 0))
op("HardSigmoid")(lambda x, *, alpha=0.2, beta=0.5: torch.clamp(x * alpha + beta, 0, 1))
op("Gelu", since=20)(lambda x, *, approximate="none": F.gelu(x, approximate=approximate))
op("Swish", since=24)(lambda x, *, alpha=1.0: x * torch.sigmoid(x * alpha))


@op("Shrink", since=9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    inside = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, inside)).to(x.dtype)


op("PRelu", since=7)(lambda x, slope: torch.where(x < 0, through_int64(torch.mul, x, slope), x))


@op("PRelu")
def prelu_1(x: Tensor, slope: Tensor) -> Tensor:
    if slope.dim() == 1 and x.dim() > 1:
        slope = slope.reshape(-1, *[1] * (x.dim() - 2))
    return torch.where(x < 0, x * slope, x)


@op("Clip", since=11)
def clip(x: Tensor, low: Value = None, high: Value = None) -> Tensor:
    bounds = [None if bound is None else scalar(bound) for bound in (low, high)]
    if any(isinstance(bound, Tensor) for bound in bounds):
        for bound, function in zip(bounds, (torch.maximum, torch.minimum), strict=True):
            if bound is not None:
                limit = bound if isinstance(bound, Tensor) else torch.full((), bound, dtype=x.dtype)
                x = through_int64(function, x, limit.reshape(()))
        return x
    if bounds == [None, None]:
        return x
    return through_int64(lambda value: torch.clamp(value, *bounds), x)


op("Clip")(lambda x, *, min=-math.inf, max=math.inf: torch.clamp(x, min, max))


@op("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if detect_negative else torch.zeros_like(x, dtype=torch.bool)


@op("Dropout", since=12, pure=False)
def dropout(
    x: Tensor, ratio: Numbers | None = None, training_mode: Numbers | None = None, *, seed: int | None = None
) -> tuple[Tensor, Tensor]:
    share = 0.5 if ratio is None else ratio.item()
    if training_mode is None or not training_mode.item() or (isinstance(share, float) and share == 0):
        return x, torch.ones_like(x, dtype=torch.bool)
    expect(not isinstance(share, float) or 0 <= share < 1, f"Dropout with ratio {share}")
    # Draws from torch's generator. `seed` is ignored, because runtimes do not share random streams.
    mask = torch.rand_like(x) >= share
    return torch.where(mask, x / (1 - share), 0), mask


op("Dropout")(lambda x, *, is_test=0, ratio=0.5: (x, torch.ones_like(x)))
op("Dropout", since=10)(lambda x, *, ratio=0.5: (x, torch.ones_like(x, dtype=torch.bool)))


def _rows(x: Tensor, axis: int) -> Tensor:
    """The operator before version 13: all dimensions from `axis` on form one row."""
    first = axis_of(axis, x.dim())
    return x.flatten(first) if first < x.dim() else x


op("Softmax", since=13)(lambda x, *, axis=-1: torch.softmax(x, axis_of(axis, x.dim())))
op("Softmax")(lambda x, *, axis=1: torch.softmax(_rows(x, axis), -1).reshape(x.shape))
op("LogSoftmax", since=13)(lambda x, *, axis=-1: torch.log_softmax(x, axis))
op("LogSoftmax")(lambda x, *, axis=1: torch.log_softmax(_rows(x, axis), -1).reshape(x.shape))


def _one_at_largest(x: Tensor) -> Tensor:
    positions = torch.arange(x.shape[-1], device=x.device)
    return (positions == x.argmax(-1, keepdim=True)).to(x.dtype)


op("Hardmax", since=13)(lambda x, *, axis=-1: _one_at_largest(x.movedim(axis, -1)).movedim(-1, axis))
op("Hardmax")(lambda x, *, axis=1: _one_at_largest(_rows(x, axis)).reshape(x.shape))
