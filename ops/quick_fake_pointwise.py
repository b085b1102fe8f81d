"""Quick fake results of pointwise operators (quick_fakes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.ops.quick_fakes import format_strides, is_contiguous, new, rule, same, same_stride

aten = torch.ops.aten

# One tensor in, a tensor of its dtype out, where that is a floating point dtype.
_UNARY = [
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "exp",
    "rsqrt",
    "sqrt",
    "neg",
    "relu",
    "sin",
    "cos",
    "erf",
    "log",
    "abs",
    "hardswish",
    "hardsigmoid",
    "mish",
    "softplus",
    "reciprocal",
    "hardtanh",
    "leaky_relu",
    "elu",
    "log1p",
    "expm1",
    "floor",
    "ceil",
    "round",
    "square",
    "relu6",
]


def _layout(x: torch.Tensor) -> Sequence[Any] | None:
    """Strides of a pointwise result: those of `x`, if it is row-major or an image with its channels last."""
    if is_contiguous(x):
        return x.stride()
    # Of one channel or pixel both formats are the same memory, and eager takes the other.
    if x.dim() < 4 or not isinstance(x.shape[1], int) or x.shape[1] == 1:
        return None
    if all(isinstance(size, int) and size == 1 for size in x.shape[2:]):
        return None
    return format_strides(x, x.shape)


def _overloads(names: Sequence[str], suffix: str) -> list[Any]:
    packets = [getattr(aten, name + suffix) for name in names if hasattr(aten, name + suffix)]
    return [packet.default for packet in packets if "default" in packet.overloads()]


@rule(*_overloads(_UNARY, ""))
def _unary(mode: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not x.dtype.is_floating_point:
        return None
    strides = _layout(x)
    return None if strides is None else new(mode, x.shape, x, strides)


@rule(aten.log_sigmoid.default)
def _log_sigmoid(mode: Any, x: torch.Tensor) -> Any:
    # Row-major whatever it reads.
    return new(mode, x.shape, x) if x.dtype.is_floating_point and is_contiguous(x) else None


@rule(*_overloads(_UNARY, "_"))
def _unary_in_place(mode: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return x if x.dtype.is_floating_point and _layout(x) is not None else None


def _fits(a: Any, b: Any, kwargs: dict[str, Any]) -> bool:
    """Whether `a` op `b` has the sizes, dtype and strides of `a`."""
    if (
        kwargs.keys() - {"alpha"}
        or not isinstance(kwargs.get("alpha", 1), int)
        or not isinstance(a, torch.Tensor)
        or not a.dtype.is_floating_point
    ):
        return False
    strides = _layout(a)
    if strides is None:
        return False
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        return True
    if not isinstance(b, torch.Tensor) or b.dtype != a.dtype or b.device != a.device:
        return False
    if not is_contiguous(a) or not is_contiguous(b):
        same_sizes = b.dim() == a.dim() and all(map(same, a.shape, b.shape))
        return same_sizes and all(map(same_stride, strides, b.stride()))
    return b.dim() <= a.dim() and all(
        same(own, other) or (isinstance(other, int) and other == 1)
        for own, other in zip(reversed(a.shape), reversed(b.shape), strict=False)
    )


@rule(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
def _binary(mode: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    return new(mode, a.shape, a, a.stride()) if _fits(a, b, kwargs) else None


@rule(aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.div_.Tensor)
def _binary_in_place(mode: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    return a if _fits(a, b, kwargs) else None
