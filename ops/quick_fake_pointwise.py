"""Quick fake results of pointwise operators (quick_fakes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.ops.quick_fake_layout import broadcast_sizes, pointwise_layout
from staticrt.ops.quick_fakes import Rule, is_contiguous, new, rule, same, same_stride

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
    "relu",
    "sin",
    "cos",
    "erf",
    "log",
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


def _overloads(names: Sequence[str], suffix: str) -> list[Any]:
    packets = [getattr(aten, name + suffix) for name in names if hasattr(aten, name + suffix)]
    return [packet.default for packet in packets if "default" in packet.overloads()]


def _result(mode: Any, tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> Any:
    """A new result of one pointwise operator on these tensors; None where its layout is open."""
    first = tensors[0]
    if any(t.device != first.device or t.layout != torch.strided or t.is_quantized for t in tensors):
        return None
    found = pointwise_layout(mode, tensors)
    return None if found is None else new(mode, found[0], first, found[1], dtype=dtype)


@rule(*_overloads(_UNARY, ""))
def _unary(mode: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return _result(mode, [x]) if x.dtype.is_floating_point else None


@rule(aten.neg.default, aten.abs.default)
def _sign(mode: Any, x: torch.Tensor) -> Any:
    return None if x.dtype == torch.bool or x.dtype.is_complex else _result(mode, [x])


@rule(aten.neg_.default, aten.abs_.default)
def _sign_in_place(mode: Any, x: torch.Tensor) -> Any:
    return None if x.dtype == torch.bool or x.dtype.is_complex or not _writable(mode, x) else x


@rule(aten.log_sigmoid.default)
def _log_sigmoid(mode: Any, x: torch.Tensor) -> Any:
    # Row-major whatever it reads.
    return new(mode, x.shape, x) if x.dtype.is_floating_point and is_contiguous(x) else None


@rule(*_overloads(_UNARY, "_"))
def _unary_in_place(mode: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return x if x.dtype.is_floating_point and _writable(mode, x) else None


def _writable(mode: Any, x: torch.Tensor) -> bool:
    """Whether each element has its own memory, as operators in place ask for; False where that is not plain."""
    if is_contiguous(x):
        return True
    found = pointwise_layout(mode, [x])
    return found is not None and all(map(same_stride, found[1], x.stride()))


@rule(aten.pow.Tensor_Scalar)
def _power(mode: Any, x: torch.Tensor, exponent: Any) -> Any:
    return _result(mode, [x]) if x.dtype.is_floating_point and type(exponent) in (int, float) else None


@rule(aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default)
def _clamp(mode: Any, x: torch.Tensor, *bounds: Any, **named: Any) -> Any:
    given = (*bounds, *named.values())
    if all(bound is None for bound in given) or any(type(b) not in (int, float, type(None)) for b in given):
        return None
    return _result(mode, [x]) if x.dtype.is_floating_point else None


def _operands(a: Any, b: Any, *, numbers: tuple[type, ...]) -> list[torch.Tensor] | None:
    """The tensors among two operands, if the result has the dtype of the first."""
    if not isinstance(a, torch.Tensor):
        return None
    if isinstance(b, torch.Tensor):
        return [a, b] if a.dtype == b.dtype else None
    return [a] if type(b) in numbers else None


def _arithmetic(op: Any, a: Any, b: Any, kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """The tensors of an arithmetic operator whose result has their dtype."""
    if (
        kwargs.keys() - {"alpha"}
        or type(kwargs.get("alpha", 1)) is not int
        or not isinstance(a, torch.Tensor)
    ):
        return None
    if a.dtype.is_floating_point:
        return _operands(a, b, numbers=(int, float))
    if op in _DIVISIONS or a.dtype.is_complex or a.dtype == torch.bool:
        return None
    return _operands(a, b, numbers=(int,))


_DIVISIONS = (aten.div.Tensor, aten.div_.Tensor)


def _binary(op: Any) -> Rule:
    def made(mode: Any, a: Any, b: Any, **kwargs: Any) -> Any:
        tensors = _arithmetic(op, a, b, kwargs)
        return None if tensors is None else _result(mode, tensors)

    return made


def _binary_in_place(op: Any) -> Rule:
    def made(mode: Any, a: Any, b: Any, **kwargs: Any) -> Any:
        tensors = _arithmetic(op, a, b, kwargs)
        return a if tensors is not None and _fits_into(a, tensors) and _writable(mode, a) else None

    return made


def _fits_into(a: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the result of these tensors has the sizes of `a`."""
    sizes = broadcast_sizes(tensors)
    return sizes is not None and len(sizes) == a.dim() and all(map(same, sizes, a.shape))


for _name in ("add", "sub", "mul", "div"):
    _op = getattr(aten, _name).Tensor
    rule(_op)(_binary(_op))
    _op = getattr(aten, _name + "_").Tensor
    rule(_op)(_binary_in_place(_op))


@rule(aten.maximum.default, aten.minimum.default, aten.max.other, aten.min.other)
def _either(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return _result(mode, [a, b]) if a.dtype == b.dtype and not a.dtype.is_complex else None


_COMPARISONS = [
    getattr(getattr(aten, name), kind)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
]


@rule(*_COMPARISONS)
def _comparison(mode: Any, a: Any, b: Any) -> Any:
    tensors = _operands(a, b, numbers=(int, float, bool))
    if tensors is None or a.dtype.is_complex:
        return None
    return _result(mode, tensors, torch.bool)


@rule(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
def _logical(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    return _result(mode, [a, b], torch.bool) if a.dtype == b.dtype else None


@rule(aten.logical_not.default)
def _logical_not(mode: Any, a: torch.Tensor) -> Any:
    return _result(mode, [a], torch.bool)


_BITWISE = [aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor]


@rule(*_BITWISE, aten.__and__.Tensor, aten.__or__.Tensor, aten.__xor__.Tensor)
def _bitwise(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    whole = not a.dtype.is_floating_point and not a.dtype.is_complex
    return _result(mode, [a, b]) if whole and a.dtype == b.dtype else None


@rule(aten.bitwise_not.default)
def _bitwise_not(mode: Any, a: torch.Tensor) -> Any:
    return None if a.dtype.is_floating_point or a.dtype.is_complex else _result(mode, [a])


@rule(aten.where.self)
def _where(mode: Any, condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
    if condition.dtype != torch.bool or a.dtype != b.dtype:
        return None
    return _result(mode, [condition, a, b], a.dtype)


@rule(aten.where.ScalarOther)
def _where_number(mode: Any, condition: torch.Tensor, a: torch.Tensor, b: Any) -> Any:
    if condition.dtype != torch.bool or not a.dtype.is_floating_point or type(b) not in (int, float):
        return None
    return _result(mode, [condition, a], a.dtype)


@rule(aten.masked_fill.Scalar)
def _masked_fill(mode: Any, x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    if not x.dtype.is_floating_point or mask.dtype != torch.bool or type(value) not in (int, float):
        return None
    sizes = broadcast_sizes([x, mask])
    if sizes is None or x.device != mask.device or not is_contiguous(x):
        return None
    return new(mode, sizes, x)


@rule(aten.fill.Scalar, aten.fill.Tensor)
def _fill(mode: Any, x: torch.Tensor, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim():
        return None
    return _result(mode, [x])
