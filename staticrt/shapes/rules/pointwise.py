"""Fake rules of pointwise operators.

TensorIterator decides sizes and strides (rules/layout.py). For the dtype, or the error if dtypes do not fit, torch's
own operator runs on tensors of one element, once per kind of call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import Rule, Unknown, below, is_contiguous, new, rule, same
from staticrt.shapes.rules.layout import broadcast_sizes, own_strides, pointwise_layout, preserved_strides
from staticrt.shapes.rules.views import is_plain

aten = torch.ops.aten

_OF_ONE = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil celu clamp clamp_max clamp_min cos cosh digamma elu erf erfc
    erfinv exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh i0 isfinite isinf isnan isneginf
    isposinf leaky_relu lgamma log log10 log1p log2 logical_not logit mish nan_to_num neg reciprocal relu relu6 round
    rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold trunc
"""
_OF_MORE = """
    __and__ __or__ __xor__ add addcdiv addcmul atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
    bitwise_xor copysign div eq floor_divide fmax fmin fmod ge gt hypot le lerp logaddexp logical_and logical_or
    logical_xor lt maximum minimum mul ne pow remainder rsub sub where xlogy
"""
_NAMES = {**dict.fromkeys(_OF_ONE.split(), False), **dict.fromkeys(_OF_MORE.split(), True)}
_PLAIN = (bool, int, float, str, type(None))


def pointwise_rule(op: Any) -> Rule | None:
    """The rule of a pointwise operator, functional or in place; None for other operators."""
    if op.namespace != "aten":
        return None
    schema = op._schema
    name = schema.name.removeprefix("aten::")
    name = name if name in _NAMES else name.removesuffix("_")
    if name not in _NAMES or [str(value.type) for value in schema.returns] != ["Tensor"]:
        return None
    if any(arg.is_out for arg in schema.arguments):
        return None
    return functools.partial(pointwise, _NAMES[name], op)


def pointwise(wraps: bool, op: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of an operator that computes each element from the operands' elements at the same index."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    found = _dtype_of(op, tensors, args, kwargs)
    if op._schema.is_mutable:
        target = args[0]
        return target if _fits_into(target, tensors) and _writable(target) else None
    # A power by a number has one operand, whose number is not a tensor beside it.
    wraps_number = (
        wraps and op is not aten.pow.Tensor_Scalar and any(not isinstance(v, torch.Tensor) for v in args)
    )
    cast = _casts(op, tensors, found, args)
    if op._schema.name == "aten::rsub":
        tensors = tensors[::-1]
    layout = pointwise_layout(mode, tensors, wraps_number=wraps_number, cast=cast)
    return new(mode, layout[0], tensors[0], layout[1], dtype=found)


rule(aten.max.other)(functools.partial(pointwise, True, aten.maximum.default))
rule(aten.min.other)(functools.partial(pointwise, True, aten.minimum.default))


def _dtype_of(
    op: Any, tensors: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.dtype:
    """The dtype of a result; raises `Unknown` for arguments of other kinds."""
    if not tensors or not all(is_plain(t) and t.device == tensors[0].device for t in tensors):
        raise Unknown
    named = tuple((name, _kind(value)) for name, value in kwargs.items())
    return _asked(op, torch.get_default_dtype(), tuple(map(_kind, args)), named)


def _casts(
    op: Any, tensors: Sequence[torch.Tensor], dtype: torch.dtype, args: Sequence[Any]
) -> Sequence[bool]:
    """Which operands are first copied to a common dtype, as on the CPU; raises `Unknown` where it depends on more."""
    kinds = {t.dtype for t in tensors}
    if kinds == {dtype} or all(map(is_contiguous, tensors)):
        return ()
    if op in _CONSTANT_OF_INTS and not tensors[0].dtype.is_floating_point:
        raise Unknown
    if op in _WHERE:
        if not kinds <= {torch.bool, dtype}:
            raise Unknown
        return ()
    if dtype == torch.bool:
        if len(tensors) == 1 and len(args) == 1:
            return ()  # a question about each element
        dtype = _asked(aten.mul.Tensor, torch.get_default_dtype(), tuple(map(_kind, args)), ())
    if any(t.dtype.is_complex for t in tensors):
        raise Unknown
    return [t.dtype != dtype for t in tensors]


_CONSTANT_OF_INTS = (aten.isinf.default, aten.isposinf.default, aten.isneginf.default, aten.isfinite.default)
_WHERE = (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)


def _kind(value: Any) -> Any:
    """What decides a result's dtype: a tensor's dtype and whether it wraps a number, or a number."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim() == 0)
    if type(value) in _PLAIN:
        return (type(value), value)
    if isinstance(value, torch.SymInt):
        return (int, 1)
    if isinstance(value, torch.SymFloat):
        return (float, 1.0)
    raise Unknown


@functools.lru_cache(maxsize=4096)
def _asked(
    op: Any, default: torch.dtype, args: Sequence[Any], kwargs: Sequence[tuple[str, Any]]
) -> torch.dtype:
    """torch's answer for tensors of one element.

    Raises:
        Unknown: it is an error, which the call itself will tell.
    """
    with below():
        try:
            result = op(*map(_sample, args), **{name: _sample(kind) for name, kind in kwargs})
        except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
            raise Unknown from error
    dtype: torch.dtype = result.dtype
    return dtype


def _sample(kind: Any) -> Any:
    first, second = kind
    if isinstance(first, torch.dtype):
        return torch.ones(() if second else (1,), dtype=first)
    return second


@rule(aten.pow.Scalar)
def _power_of_number(mode: Any, number: Any, x: torch.Tensor) -> Any:
    found = _dtype_of(aten.pow.Scalar, [x], (number, x), {})
    # The kernel returns a row-major result for every input layout.
    return new(mode, x.shape, x, dtype=found)


@rule(aten.hardtanh.default, aten.relu6.default, aten.nan_to_num.default)
def _clipped(mode: Any, x: torch.Tensor, *limits: Any) -> Any:
    if not x.dtype.is_floating_point or any(type(v) not in _PLAIN for v in limits):
        return None
    return new(mode, x.shape, x, preserved_strides(mode, x))


@rule(aten.log_sigmoid.default)
def _log_sigmoid(mode: Any, x: torch.Tensor) -> Any:
    # Row-major whatever it reads.
    return new(mode, x.shape, x) if x.dtype.is_floating_point and is_contiguous(x) else None


def _writable(x: torch.Tensor) -> bool:
    """Whether no two elements surely share memory (`at::has_internal_overlap`), which operators in place refuse."""
    return not any(
        isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size == 1)
        for size, stride in zip(x.shape, x.stride(), strict=True)
    )


def _fits_into(a: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the result of these tensors has the sizes of `a`."""
    sizes = broadcast_sizes(tensors)
    return len(sizes) == a.dim() and all(map(same, sizes, a.shape))


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(mode: Any, x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    if not _can_fill(x, mask, value):
        return None
    # The kernel returns a row-major result for every input layout.
    return new(mode, broadcast_sizes([x, mask]), x)


@rule(aten.masked_fill_.Scalar, aten.masked_fill_.Tensor)
def _masked_fill_in_place(mode: Any, x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    fits = _can_fill(x, mask, value) and _fits_into(x, [x, mask]) and _writable(x)
    return x if fits else None


def _can_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> bool:
    if mask.dtype != torch.bool or x.device != mask.device or not is_plain(x) or not is_plain(mask):
        return False
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype == x.dtype and value.device == x.device
    if x.dtype.is_floating_point:
        return type(value) in (int, float)
    if x.dtype == torch.bool:
        return type(value) is bool
    return type(value) is int and not x.dtype.is_complex


@rule(aten.fill.Scalar, aten.fill.Tensor)
def _fill(mode: Any, x: torch.Tensor, value: Any) -> Any:
    if not is_plain(x) or (isinstance(value, torch.Tensor) and value.dim()):
        return None
    return new(mode, x.shape, x, preserved_strides(mode, x))


@rule(aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)
def _fill_in_place(mode: Any, x: torch.Tensor, value: Any = 0) -> Any:
    known = not isinstance(value, torch.Tensor) or value.dim() == 0
    return x if known and is_plain(x) and _writable(x) else None


@rule(aten.bernoulli_.float, aten.uniform_.default, aten.normal_.default, aten.exponential_.default)
def _draw_in_place(mode: Any, x: torch.Tensor, *numbers: Any, generator: Any = None) -> Any:
    known = x.dtype.is_floating_point and all(type(number) in (int, float) for number in numbers)
    return x if known and is_plain(x) and _writable(x) else None


@rule(aten.copy_.default)
def _copy(mode: Any, x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if (
        x.device != source.device
        or not is_plain(x)
        or not is_plain(source)
        or x.dtype.is_complex != source.dtype.is_complex
    ):
        return None
    return x if _fits_into(x, [x, source]) and _writable(x) else None


@rule(aten.copy.default)
def _copied(mode: Any, x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    fits = is_plain(x) and is_plain(source) and x.device == source.device and _fits_into(x, [x, source])
    if not fits or x.dtype.is_complex != source.dtype.is_complex:
        return None
    return new(mode, x.shape, x, own_strides(mode, x))
