"""Quick fake results of pooling and concatenation (quick_fakes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.ops.quick_fake_layout import least
from staticrt.ops.quick_fakes import (
    agree,
    channels_last_strides,
    contiguous_strides,
    expression,
    format_strides,
    is_contiguous,
    new,
    rule,
)
from staticrt.ops.size_nodes import check as _check

aten = torch.ops.aten


def _pair(value: Any) -> list[int] | None:
    """A setting for two dimensions, where it is one or two plain numbers."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    values = values * 2 if len(values) == 1 else values
    return values if len(values) == 2 and all(type(v) is int for v in values) else None


def _pooled_size(size: Any, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Any:
    """How many windows fit; None where that takes asking for the size (`pooling_output_shape` of ATen)."""
    reach = dilation * (kernel - 1) + 1
    if not ceil_mode:
        return (size + 2 * padding - reach) // stride + 1
    if padding + stride > reach:  # the last window may begin in the padding, and is left out then
        return None
    return (size + 2 * padding - reach + stride - 1) // stride + 1


def _pooled(
    x: torch.Tensor, window: Sequence[Any], stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Any:
    kernel, steps, pads, spread = _pair(window), _pair(stride or window), _pair(padding), _pair(dilation)
    if x.dim() != 4 or x.is_quantized or kernel is None or steps is None or pads is None or spread is None:
        return None
    if min(*kernel, *steps, *spread) < 1 or any(
        p < 0 or 2 * p > k for p, k in zip(pads, kernel, strict=True)
    ):
        return None
    sizes = [
        _pooled_size(*numbers, ceil_mode)
        for numbers in zip(x.shape[2:], kernel, steps, pads, spread, strict=True)
    ]
    if None in sizes:
        return None
    strides = _image_strides(x, [*x.shape[:2], *sizes])
    if strides is None:
        return None
    for size in sizes:
        _check(size > 0)
    return [*x.shape[:2], *sizes], strides


def _image_strides(x: torch.Tensor, sizes: Sequence[Any]) -> Sequence[Any] | None:
    """Strides of a result in the memory format of `x`; None where sizes of 1 leave the format open."""
    if not is_contiguous(x) and (not isinstance(x.shape[1], int) or x.shape[1] == 1):
        return None
    return format_strides(x, sizes)


@rule(aten.max_pool2d.default)
def _max_pool(
    mode: Any,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    found = _pooled(x, window, stride, padding, dilation, ceil_mode)
    return None if found is None else new(mode, found[0], x, found[1])


@rule(aten.max_pool2d_with_indices.default)
def _max_pool_with_indices(
    mode: Any,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    found = _pooled(x, window, stride, padding, dilation, ceil_mode)
    if found is None:
        return None
    return new(mode, found[0], x, found[1]), new(mode, found[0], x, found[1], dtype=torch.int64)


@rule(aten.avg_pool2d.default)
def _avg_pool(
    mode: Any,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    if divisor_override == 0 or not x.dtype.is_floating_point:
        return None
    found = _pooled(x, window, stride, padding, 1, ceil_mode)
    return None if found is None else new(mode, found[0], x, found[1])


@rule(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def _adaptive_avg_pool(mode: Any, x: torch.Tensor, size: Sequence[Any]) -> Any:
    if x.dim() != 4 or len(size) != 2 or not x.dtype.is_floating_point:
        return None
    if not all(isinstance(s, int) and s > 0 for s in size):
        return None
    sizes = [*x.shape[:2], *size]
    strides = _image_strides(x, sizes)
    return None if strides is None else new(mode, sizes, x, strides)


@rule(aten.clone.default)
def _clone(mode: Any, x: torch.Tensor, *, memory_format: Any = None) -> Any:
    if x.layout != torch.strided or x.is_quantized or x.is_conj() or x.is_neg():
        return None
    if memory_format is torch.channels_last and x.dim() == 4:
        return new(mode, x.shape, x, channels_last_strides(mode, x.shape))
    if memory_format is torch.contiguous_format or (
        memory_format in (None, torch.preserve_format) and is_contiguous(x)
    ):
        return new(mode, x.shape, x)
    return None


@rule(aten.cat.default)
def _cat(mode: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    rank = first.dim()
    if (
        rank == 0
        or not -rank <= dim < rank
        or any(t.dim() != rank or t.dtype != first.dtype for t in tensors)
    ):
        return None
    dim %= rank
    if any(t.device != first.device for t in tensors):
        return None
    row_major = rank < 4 or all(map(is_contiguous, tensors)) or any(map(_is_no_image, tensors))
    if not row_major and (not all(map(_is_channels_last, tensors)) or dim != 1):
        return None
    if rank == 1 and any(not isinstance(t.shape[0], int) for t in tensors):
        return None  # an empty one would be left out whatever the others are
    for other in tensors[1:]:
        for d in range(rank):
            if d != dim and not agree(first.shape[d], other.shape[d]):
                return None
    sizes = list(first.shape)
    for other in tensors[1:]:
        sizes[dim] = sizes[dim] + other.shape[dim]
    strides = contiguous_strides(mode, sizes) if row_major else channels_last_strides(mode, sizes)
    return new(mode, sizes, first, strides)


def _is_no_image(x: torch.Tensor) -> bool:
    """Four dimensions of which the last is surely the innermost, so that the channels are not."""
    if x.dim() != 4 or type(x.stride(3)) is not int or x.stride(3) != 1:
        return False
    outer = x.stride(1)
    return outer > 1 if isinstance(outer, int) else least(expression(outer)) > 1


@rule(aten.stack.default)
def _stack(mode: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    rank = first.dim()
    if not -rank - 1 <= dim <= rank:
        return None
    # It is a concatenation, along an added dimension only where that is the last.
    joined = rank if dim % (rank + 1) < rank else rank + 1
    plain = (
        joined < 4 or all(map(is_contiguous, tensors)) or (joined == rank and any(map(_is_no_image, tensors)))
    )
    if not plain:
        return None
    for other in tensors[1:]:
        if other.dtype != first.dtype or other.device != first.device or other.dim() != rank:
            return None
        if not all(map(agree, first.shape, other.shape)):
            return None
    sizes = list(first.shape)
    sizes.insert(dim % (rank + 1), len(tensors))
    return new(mode, sizes, first)


def _is_channels_last(x: torch.Tensor) -> bool:
    """An image whose channels are adjacent, whatever its sizes turn out to be."""
    if x.dim() != 4 or not isinstance(x.shape[1], int) or x.shape[1] == 1 or is_contiguous(x):
        return False
    return (
        not all(isinstance(s, int) and s == 1 for s in x.shape[2:]) and format_strides(x, x.shape) is not None
    )
