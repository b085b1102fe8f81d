"""Fake rules of operators that make tensors from sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import expression, fresh, new, rule
from staticrt.shapes.rules.layout import copied_strides, least
from staticrt.shapes.size_checks import env_of

aten = torch.ops.aten


def _device(layout: Any, device: Any, pin_memory: Any) -> torch.device | None:
    """The requested device, if it is the CPU, strided and not pinned."""
    if layout not in (None, torch.strided) or pin_memory:
        return None
    found = torch.get_default_device() if device is None else torch.device(device)
    return found if found.type == "cpu" else None


def _are_sizes(sizes: Sequence[Any]) -> bool:
    """Whether no size is negative. Adds a guard where symbols of ours may be."""
    return all(
        size >= 0
        if isinstance(size, int)
        else least(expression(size)) >= 0 or (env_of(size) is not None and bool(size >= 0))
        for size in sizes
    )


@rule(aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.rand.default, aten.randn.default)
def _filled(
    mode: Any,
    size: Sequence[Any],
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    place = _device(layout, device, pin_memory)
    if place is None or memory_format not in (None, torch.contiguous_format) or not _are_sizes(size):
        return None
    return fresh(mode, size, None, dtype or torch.get_default_dtype(), place)


@rule(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default)
def _new_filled(mode: Any, x: torch.Tensor, size: Sequence[Any], **options: Any) -> Any:
    return _filled(mode, size, **{**options, **_defaults(x, options)})


@rule(aten.new_empty_strided.default, aten.empty_strided.default)
def _strided(mode: Any, *args: Any, **options: Any) -> Any:
    *like, size, stride = args
    known = {**options, **_defaults(like[0], options)} if like else options
    place = _device(known.get("layout"), known.get("device"), known.get("pin_memory"))
    if place is None or len(size) != len(stride) or not _are_sizes([*size, *stride]):
        return None
    return fresh(mode, size, stride, known.get("dtype") or torch.get_default_dtype(), place)


def _defaults(x: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": options.get("dtype") or x.dtype, "device": options.get("device") or x.device}


@rule(aten.full.default)
def _full(mode: Any, size: Sequence[Any], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    dtype = dtype or kinds.get(type(value))
    return None if dtype is None else _filled(mode, size, dtype=dtype, **options)


rule(aten.full_like.default)(lambda mode, x, value, **options: _like(mode, x, **options))
rule(aten.new_full.default)(lambda mode, x, size, value, **options: _new_filled(mode, x, size, **options))


@rule(
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
)
def _like(mode: Any, x: torch.Tensor, *, memory_format: Any = None, **options: Any) -> Any:
    known = {**options, **_defaults(x, options)}
    place = _device(known.get("layout"), known["device"], known.get("pin_memory"))
    if x.layout != torch.strided or x.is_quantized or place is None:
        return None
    return fresh(mode, x.shape, copied_strides(mode, x, memory_format), known["dtype"], place)


rule(aten.arange.default)(lambda mode, end, **options: _range(mode, 0, end, **options))


@rule(aten.arange.start)
def _range(
    mode: Any,
    start: Any,
    end: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    place = _device(layout, device, pin_memory)
    if type(start) is float and math.isfinite(start):
        dtype = dtype or torch.get_default_dtype()
        start = math.floor(start) if dtype.is_floating_point else start
    whole = all(type(limit) is int or isinstance(limit, torch.SymInt) for limit in (start, end))
    if place is None or not whole or dtype not in (None, torch.int64, torch.int32, torch.float32):
        return None
    size = end if type(start) is int and start == 0 else end - start
    if not _are_sizes([size]):
        return None
    return fresh(mode, [size], None, dtype or torch.int64, place)


@rule(aten.arange.start_step)
def _steps(mode: Any, start: Any, end: Any, step: Any = 1, **options: Any) -> Any:
    step = int(step) if isinstance(step, float) and step.is_integer() and options.get("dtype") else step
    if type(step) is not int or step == 0:
        return None
    if step < 0:
        start, end, step = end, start, -step
    size = end - start
    if not all(type(bound) is int or isinstance(bound, torch.SymInt) for bound in (start, end)):
        return None
    return _range(mode, 0, size if step == 1 else (size + step - 1) // step, **options)


rule(aten.eye.default)(lambda mode, n, **options: _filled(mode, [n, n], **options))
rule(aten.eye.m)(lambda mode, n, m, **options: _filled(mode, [n, m], **options))
rule(aten.scalar_tensor.default)(lambda mode, number, **options: _filled(mode, [], **options))


@rule(aten.bernoulli.default, aten.bernoulli.p)
def _drawn(mode: Any, x: torch.Tensor, *_probability: Any, generator: Any = None) -> Any:
    if not x.dtype.is_floating_point:
        return None
    return _like(mode, x, memory_format=torch.contiguous_format)


@rule(aten.randint.default)
def _random_ints(mode: Any, high: Any, size: Sequence[Any], **options: Any) -> Any:
    return _filled(mode, size, **{"dtype": torch.int64, **options})


rule(aten.randint.low)(lambda mode, low, high, size, **options: _random_ints(mode, high, size, **options))


@rule(aten._to_copy.default)
def _converted(
    mode: Any,
    x: torch.Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    place = _device(layout, x.device if device is None else device, pin_memory)
    if x.layout != torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
        return None
    if place is None or place != x.device:
        return None
    return new(mode, x.shape, x, copied_strides(mode, x, memory_format), dtype=dtype)


@rule(aten.clone.default, aten.lift_fresh_copy.default)
def _clone(mode: Any, x: torch.Tensor, *, memory_format: Any = None) -> Any:
    return _converted(mode, x, memory_format=memory_format)
