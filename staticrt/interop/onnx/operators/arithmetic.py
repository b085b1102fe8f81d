"""Arithmetic, comparisons, logic and bit operations. Numbers known while tracing are computed then."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from staticrt.interop.onnx.arguments import Value, expect, scalar, through_int64
from staticrt.interop.onnx.numbers import SYMBOLIC, Numbers, Tensor, apply, as_tensor
from staticrt.interop.onnx.registry import op

Function = Callable[..., Any]


def _host(function: Function, dtype: torch.dtype | None = None) -> Function:
    """The operator on numbers. A node with attributes is of an old version and is not computed here."""

    def compute(*inputs: Any, **attributes: Any) -> Any:
        if attributes or any(value is None for value in inputs):
            return NotImplemented
        return apply(function, inputs, dtype or inputs[0].dtype)

    return compute


def _truncated(a: Any, b: Any) -> Any:
    if isinstance(a, (float, torch.SymFloat)):
        return a / b if b != 0 or isinstance(b, SYMBOLIC) else math.copysign(math.inf, a) if a else math.nan
    if isinstance(a, SYMBOLIC) or isinstance(b, SYMBOLIC):
        return a // b if (a >= 0) == (b > 0) else -((-a) // b)
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


def _legacy(a: Value, b: Value, axis: int | None, broadcast: int) -> tuple[Any, Any]:
    """Before version 7 the second operand was aligned at `axis`, and only if asked for."""
    a, b = as_tensor(a), as_tensor(b)
    if broadcast and axis is not None:
        first = axis + a.dim() if axis < 0 else axis
        b = b.reshape(tuple(b.shape) + (1,) * (a.dim() - first - b.dim()))
    return a, b


def _beside(value: Any, other: Tensor) -> bool:
    return (
        isinstance(value, Numbers)
        and value.array.size == 1
        and value.array.ndim <= other.dim()
        and value.dtype == other.dtype
    )


def _pair(a: Value, b: Value) -> tuple[Any, Any]:
    """The operands. A scalar that is known while tracing stays a number beside a tensor of its type."""
    if isinstance(a, Tensor) and _beside(b, a):
        return a, b.item()
    if isinstance(b, Tensor) and _beside(a, b):
        return a.item(), b
    return as_tensor(a), as_tensor(b)


def _tensors(a: Value, b: Value) -> tuple[Tensor, Tensor]:
    return as_tensor(a), as_tensor(b)


def _binary(
    name: str, function: Function, host: Function, result: torch.dtype | None = None, pair: Function = _pair
) -> None:
    """Register a broadcasting operator, with and without the attributes it had before version 7."""

    def compute(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            return function(a, b)
        return through_int64(function, a, b)

    @op(name, since=7, host=_host(host, result))
    def build(a: Value, b: Value) -> Any:
        return compute(*pair(a, b))

    @op(name, host=_host(host, result))
    def build_legacy(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Any:
        return compute(*_legacy(a, b, axis, broadcast))


def _divide(a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor) and a == 1 and b.dtype.is_floating_point:
        return torch.reciprocal(b)  # equal to 1 / b; passes recognise norms by it
    tensor = a if isinstance(a, Tensor) else b
    real = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return torch.div(a, b, rounding_mode=None if real else "trunc")


_binary("Add", operator.add, operator.add)
_binary("Sub", operator.sub, operator.sub)
_binary("Mul", operator.mul, operator.mul)
_binary("Div", _divide, _truncated)
_binary("And", torch.logical_and, lambda a, b: bool(a) and bool(b), torch.bool, _tensors)
_binary("Or", torch.logical_or, lambda a, b: bool(a) or bool(b), torch.bool, _tensors)
_binary("Xor", torch.logical_xor, lambda a, b: bool(a) != bool(b), torch.bool, _tensors)
_binary("Equal", operator.eq, operator.eq, torch.bool)
_binary("Greater", operator.gt, operator.gt, torch.bool)
_binary("Less", operator.lt, operator.lt, torch.bool)


@op("GreaterOrEqual", since=12, host=_host(operator.ge, torch.bool))
def greater_or_equal(a: Value, b: Value) -> Any:
    a, b = _pair(a, b)
    return a >= b if not isinstance(a, Tensor) or not isinstance(b, Tensor) else through_int64(torch.ge, a, b)


@op("LessOrEqual", since=12, host=_host(operator.le, torch.bool))
def less_or_equal(a: Value, b: Value) -> Any:
    a, b = _pair(a, b)
    return a <= b if not isinstance(a, Tensor) or not isinstance(b, Tensor) else through_int64(torch.le, a, b)


def _host_mod(a: Numbers, b: Numbers, *, fmod: int = 0) -> Any:
    return NotImplemented if fmod else apply(operator.mod, (a, b), a.dtype)


@op("Mod", host=_host_mod)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    return through_int64(torch.fmod if fmod else torch.remainder, a, b)


@op("Pow", since=7, host=_host(operator.pow))
def power(a: Tensor, b: Value) -> Tensor:
    exponent = scalar(b)
    if isinstance(exponent, Tensor):
        if not a.dtype.is_floating_point and exponent.dtype.is_floating_point:
            return torch.pow(a.double(), exponent).to(a.dtype)
        return torch.pow(
            a,
            exponent.to(torch.int64)
            if exponent.dtype in (torch.uint32, torch.uint64, torch.uint16)
            else exponent,
        ).to(a.dtype)
    if isinstance(b, Numbers) and b.array.ndim > a.dim():
        a = a.reshape((1,) * (b.array.ndim - a.dim()) + tuple(a.shape))
    return torch.pow(
        a if a.dtype.is_floating_point or isinstance(exponent, int) else a.double(), exponent
    ).to(a.dtype)


@op("Pow")
def power_legacy(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    a, b = _legacy(a, b, axis, broadcast)
    return torch.pow(a, b)


def _variadic(name: str, function: Function, host: Function) -> None:
    @op(name, host=_host(host))
    def build(*inputs: Tensor) -> Tensor:
        found = inputs[0]
        for value in inputs[1:]:
            found = through_int64(function, found, value)
        return found


def _host_extreme(better: Function) -> Function:
    def compute(*items: Any) -> Any:
        if any(isinstance(item, SYMBOLIC) for item in items):
            return _symbolic(better, items)
        return next((item for item in items if item != item), better(items))  # NaN wins

    return compute


def _symbolic(better: Function, items: tuple[Any, ...]) -> Any:
    choose: Function = torch.sym_max if better is max else torch.sym_min
    found = items[0]
    for item in items[1:]:
        found = choose(found, item)
    return found


_variadic("Sum", torch.add, lambda *items: sum(items))
_variadic("Max", torch.maximum, _host_extreme(max))
_variadic("Min", torch.minimum, _host_extreme(min))


@op("Mean")
def mean(*inputs: Tensor) -> Tensor:
    found = inputs[0]
    for value in inputs[1:]:
        found = found + value
    return found / len(inputs)


@op("Not", host=_host(operator.not_, torch.bool))
def logical_not(x: Tensor) -> Tensor:
    expect(x.dtype is torch.bool, f"Not of {x.dtype}")
    return torch.logical_not(x)


op("Neg", host=_host(operator.neg))(lambda x: torch.neg(x))


@op("Abs", host=_host(abs))
def absolute(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.uint16, torch.uint32, torch.uint64, torch.bool) else torch.abs(x)


def _whole(function: Function) -> Function:
    """Round floats that are known while tracing; integers are unchanged."""

    def compute(value: Any) -> Any:
        if isinstance(value, (int, torch.SymInt)):
            return value
        if isinstance(value, float) and not math.isfinite(value):
            return value
        return function(value)

    return _host(compute)


op("Floor", host=_whole(math.floor))(lambda x: torch.floor(x))
op("Ceil", host=_whole(math.ceil))(lambda x: torch.ceil(x))


def _host_sqrt(x: Numbers) -> Any:
    return (
        apply(lambda v: v**0.5, (x,), x.dtype)
        if x.known and all(v >= 0 for v in x.list())
        else NotImplemented
    )


op("Sqrt", host=_host_sqrt)(lambda x: torch.sqrt(x))


def _host_where(condition: Numbers, a: Numbers, b: Numbers) -> Numbers:
    return apply(lambda c, x, y: x if c else y, (condition, a, b), a.dtype)


op("Where", since=9, host=_host_where)(lambda condition, a, b: torch.where(condition, a, b))


@op("BitShift", since=11)
def bit_shift(x: Tensor, amount: Tensor, *, direction: str) -> Tensor:
    expect(direction in ("LEFT", "RIGHT"), f"unknown direction {direction!r} of BitShift")
    function = torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift
    return through_int64(function, x, amount)


op("BitwiseAnd", since=18)(lambda a, b: through_int64(torch.bitwise_and, a, b))
op("BitwiseOr", since=18)(lambda a, b: through_int64(torch.bitwise_or, a, b))
op("BitwiseXor", since=18)(lambda a, b: through_int64(torch.bitwise_xor, a, b))
op("BitwiseNot", since=18)(lambda x: through_int64(torch.bitwise_not, x))
