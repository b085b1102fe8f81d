"""Fake rules of repeat, unfold, padding, gated units and flips."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import RULES, is_contiguous, new, product, rule, same, view_of
from staticrt.shapes.rules.convolutions import conv_size
from staticrt.shapes.rules.layout import (
    broadcast_sizes,
    broadcast_strides,
    new_as_suggested,
    preserved_strides,
)
from staticrt.shapes.rules.views import is_plain
from staticrt.shapes.size_checks import check as _check
from staticrt.shapes.size_checks import env_of

aten = torch.ops.aten


@rule(aten.repeat.default)
def _repeat(mode: Any, x: torch.Tensor, repeats: Sequence[Any]) -> Any:
    missing = len(repeats) - x.dim()
    if missing < 0 or not is_plain(x):
        return None
    for count in repeats:
        _check(count >= 0)
    sizes = [*[1] * missing, *x.shape]
    return new(mode, [product(mode, [size, count]) for size, count in zip(sizes, repeats, strict=True)], x)


@rule(aten.unfold.default)
def _unfold(mode: Any, x: torch.Tensor, dim: int, size: Any, step: Any) -> Any:
    rank = x.dim()
    if (
        not is_plain(x)
        or not rank
        or not -rank <= dim < rank
        or type(size) is not int
        or type(step) is not int
    ):
        return None
    dim %= rank
    whole, stride = x.shape[dim], x.stride(dim)
    if size < 1 or step < 1 or not whole >= size:
        return None
    sizes, strides = [*x.shape, size], [*x.stride(), stride]
    sizes[dim], strides[dim] = (whole - size) // step + 1, stride * step
    return view_of(mode, x, sizes, strides)


@rule(aten.broadcast_tensors.default)
def _broadcast_tensors(mode: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if not all(map(is_plain, tensors)):
        return None
    sizes = broadcast_sizes(tensors)
    return [
        x
        if x.dim() == len(sizes) and all(map(same, x.shape, sizes))
        else view_of(mode, x, sizes, broadcast_strides(x.shape, x.stride(), sizes))
        for x in tensors
    ]


@rule(aten.glu.default)
def _glu(mode: Any, x: torch.Tensor, dim: int = -1) -> Any:
    rank = x.dim()
    if not rank or not -rank <= dim < rank or not is_contiguous(x) or not x.dtype.is_floating_point:
        return None
    sizes = list(x.shape)
    _check(sizes[dim] % 2 == 0)
    sizes[dim] = sizes[dim] // 2
    return new(mode, sizes, x)


@rule(aten.flip.default)
def _flip(mode: Any, x: torch.Tensor, dims: Sequence[int]) -> Any:
    rank = x.dim()
    if (
        not is_plain(x)
        or not all(-rank <= d < rank for d in dims)
        or len({d % rank for d in dims}) != len(dims)
    ):
        return None
    return new(mode, x.shape, x, preserved_strides(mode, x))


@rule(aten.roll.default)
def _roll(mode: Any, x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    rank = x.dim()
    if not is_plain(x) or len(shifts) != max(len(dims), 1) or not all(-rank <= d < rank for d in dims):
        return None
    if is_contiguous(x) or not dims:
        return new(mode, x.shape, x)
    return _rolled(mode, x, shifts, dims)


def _rolled(mode: Any, x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int]) -> Any:
    """Along each dimension, the part from some place on, then the part before it (`roll` of TensorTransformations.cpp)."""
    if any(type(shift) is not int for shift in shifts) or any(map(_is_zero, x.shape)):
        return None
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        if type(size) is not int and (env_of(size) is None or not size > abs(shift)):
            return None
        before = list(x.shape)
        before[dim] = -shift % size if type(size) is int else size - shift if shift > 0 else -shift
        after = list(x.shape)
        after[dim] -= before[dim]
        parts = [view_of(mode, x, sizes, x.stride()) for sizes in (after, before)]
        x = RULES[aten.cat.default](mode, parts, dim)  # type: ignore[misc]
        if x is None:
            return None
    return x


def _is_zero(number: Any) -> bool:
    return isinstance(number, int) and number == 0


@rule(aten.pad.default)
def _pad(mode: Any, x: torch.Tensor, pad: Sequence[Any], kind: str = "constant", value: Any = None) -> Any:
    return _constant_pad(mode, x, pad) if kind == "constant" else None


@rule(aten.constant_pad_nd.default)
def _constant_pad(mode: Any, x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    if len(pad) % 2 or len(pad) // 2 > x.dim():
        return None
    sizes = list(x.shape)
    for index in range(len(pad) // 2):
        before, after = pad[2 * index : 2 * index + 2]
        size = sizes[-1 - index] + before + after
        if not (isinstance(before, int) and isinstance(after, int) and before >= 0 and after >= 0):
            _check(size >= 0)
        sizes[-1 - index] = size
    if not is_contiguous(x) and not any(isinstance(p, int) and p > 0 for p in pad):
        symbolic = [p for p in pad if type(p) is not int]
        if any(env_of(p) is None for p in symbolic):
            return None
        if all(p <= 0 for p in symbolic):  # nothing is added: a slice is copied, in its own layout
            return new(mode, sizes, x, preserved_strides(mode, view_of(mode, x, sizes, x.stride())))
        if len(symbolic) < len([p for p in pad if not _is_zero(p)]):
            return None
    return new_as_suggested(mode, sizes, x)


def _padded(spatial: int, mirrors: bool, mode: Any, x: torch.Tensor, pad: Sequence[Any]) -> Any:
    """Padding by mirrored or repeated elements. Negative padding, which removes elements, is left to torch."""
    if x.dim() != spatial + 2 or len(pad) != 2 * spatial or not is_plain(x):
        return None
    if not all(type(p) is int and p >= 0 for p in pad) or not x.dtype.is_floating_point:
        return None
    sizes = list(x.shape)
    for size in sizes[1:]:
        _check(size > 0)
    for index in range(spatial):
        before, after = pad[2 * index : 2 * index + 2]
        if mirrors:
            _check(sizes[-1 - index] > max(before, after))
        sizes[-1 - index] = sizes[-1 - index] + before + after
    return new_as_suggested(mode, sizes, x)


for _spatial, _mirror, _edge in (
    (1, aten.reflection_pad1d, aten.replication_pad1d),
    (2, aten.reflection_pad2d, aten.replication_pad2d),
):
    rule(_mirror.default)(functools.partial(_padded, _spatial, True))
    rule(_edge.default)(functools.partial(_padded, _spatial, False))


def _blocks(mode: Any, image: Sequence[Any], how: Sequence[Sequence[Any]]) -> Any:
    """The number of windows in an image; None where that cannot be decided quickly.

    Args:
        image: height and width.
        how: of a window: its size, dilation, padding and step, of two numbers each.
    """
    if not all(len(pair) == 2 and all(type(n) is int for n in pair) for pair in how):
        return None
    window, dilation, padding, step = how
    if min(*window, *dilation, *step) < 1 or min(padding) < 0:
        return None
    numbers = zip(image, window, padding, dilation, step, strict=True)
    rows, columns = (conv_size(mode, *each) for each in numbers)
    return product(mode, [rows, columns])


@rule(aten.im2col.default)
def _im2col(mode: Any, x: torch.Tensor, *how: Sequence[Any]) -> Any:
    if x.dim() not in (3, 4) or not is_plain(x) or not x.dtype.is_floating_point:
        return None
    blocks = _blocks(mode, x.shape[-2:], how)
    if blocks is None:
        return None
    for size in x.shape[-3:]:
        _check(size > 0)
    channels = x.shape[-3] * (how[0][0] * how[0][1])
    return new(mode, [*x.shape[:-3], channels, blocks], x)


@rule(aten.col2im.default)
def _col2im(mode: Any, x: torch.Tensor, image: Sequence[Any], *how: Sequence[Any]) -> Any:
    if x.dim() not in (2, 3) or len(image) != 2 or not is_plain(x) or not x.dtype.is_floating_point:
        return None
    blocks = _blocks(mode, image, how)
    if blocks is None:
        return None
    for size in (*x.shape[-2:], *image):
        _check(size > 0)
    window = how[0][0] * how[0][1]
    _check(x.shape[-2] % window == 0)
    _check(x.shape[-1] == blocks)
    return new(mode, [*x.shape[:-2], x.shape[-2] // window, *image], x)
