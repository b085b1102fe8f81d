"""Operators on shapes and layouts, which move elements without computing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, Value, axes_of, axis_of, expect
from staticrt.interop.onnx.numbers import Numbers, Tensor, as_tensor, objects
from staticrt.interop.onnx.registry import Call, op


def shape_of(x: Any) -> tuple[Any, ...]:
    """Sizes of a tensor or of numbers."""
    return tuple(x.shape)


def _host_shape(x: Numbers, *, start: int = 0, end: int | None = None) -> Numbers:
    return Numbers(objects(list(x.shape)[start:end]), torch.int64)


@op("Shape", host=_host_shape)
def shape(x: Value, *, start: int = 0, end: int | None = None) -> Numbers:
    return Numbers(objects(list(x.shape)[start:end]), torch.int64)


@op("Size")
def size(x: Value) -> Numbers:
    return Numbers(objects([math.prod(shape_of(x))], ()), torch.int64)


@op("Identity", since=1)
def identity(x: Value) -> Any:
    return x


def _target(sizes: list[Any], old: tuple[Any, ...], allowzero: int) -> list[Any]:
    """Sizes of Reshape, a 0 replaced by the input's size there."""
    found = []
    for index, number in enumerate(sizes):
        if isinstance(number, int) and number == 0 and not allowzero:
            if index >= len(old):
                raise OnnxError(f"Reshape to {sizes} copies size {index} of a tensor of rank {len(old)}")
            number = old[index]
        found.append(number)
    return found


def _host_reshape(x: Numbers, shape: Numbers | None = None, *, allowzero: int = 0) -> Any:
    if shape is None or not shape.known:
        return NotImplemented
    return Numbers(x.array.reshape(_target(shape.list(), x.shape, allowzero)), x.dtype)


@op("Reshape", since=5, host=_host_reshape)
def reshape(x: Tensor, shape: Numbers, *, allowzero: int = 0) -> Tensor:
    expect(shape.array.ndim == 1, f"the shape for Reshape has rank {shape.array.ndim}, not 1")
    return x.reshape(_target(shape.list(), tuple(x.shape), allowzero))


op("Reshape")(lambda x, *, shape=(): x.reshape(_target(list(shape), tuple(x.shape), 0)))


@op("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    first = axis + x.dim() if axis < 0 else axis
    if not 0 <= first <= x.dim():
        raise OnnxError(f"Flatten at axis {axis} of a tensor of rank {x.dim()}")
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))


def _host_transpose(x: Numbers, *, perm: Ints | None = None) -> Numbers:
    return Numbers(x.array.transpose(perm), x.dtype)


@op("Transpose", host=_host_transpose)
def transpose(x: Tensor, *, perm: Ints | None = None) -> Tensor:
    return x.permute(*(perm if perm is not None else range(x.dim() - 1, -1, -1)))


def _without(x: Any, axes: list[int] | None) -> list[Any]:
    """Sizes after Squeeze."""
    if axes is None:
        return [number for number in x.shape if number != 1]
    for axis in axes:
        if x.shape[axis] != 1:
            raise OnnxError(f"Squeeze of axis {axis}, which has size {x.shape[axis]}")
    return [number for index, number in enumerate(x.shape) if index not in axes]


def _host_squeeze(x: Numbers, axes: Any = None) -> Any:
    wanted = None if axes is None else axes_of(axes, x.array.ndim)
    return Numbers(x.array.reshape(_without(x, wanted)), x.dtype)


@op("Squeeze", since=13, host=_host_squeeze)
def squeeze(x: Tensor, axes: Numbers | None = None) -> Tensor:
    return _squeezed(x, None if axes is None else axes_of(axes, x.dim()))


def _squeezed(x: Tensor, axes: list[int] | None) -> Tensor:
    _without(x, axes)
    wanted = axes if axes is not None else [i for i, size in enumerate(x.shape) if size == 1]
    for axis in sorted(wanted, reverse=True):  # squeeze() keeps a symbolic size that a guard says is 1
        x = x.select(axis, 0)
    return x


@op("Squeeze", host=lambda x, *, axes=None: _host_squeeze(x, axes))
def squeeze_1(x: Tensor, *, axes: Ints | None = None) -> Tensor:
    return _squeezed(x, None if axes is None else axes_of(axes, x.dim()))


def _widened(shape: tuple[Any, ...], axes: Any) -> list[Any]:
    """Sizes after Unsqueeze."""
    items = axes.list() if isinstance(axes, Numbers) else list(axes)
    wanted = sorted(axes_of(items, len(shape) + len(items)))
    if len(set(wanted)) != len(wanted):
        raise OnnxError(f"Unsqueeze names an axis twice: {items}")
    found = list(shape)
    for axis in wanted:
        found.insert(axis, 1)
    return found


def _host_unsqueeze(x: Numbers, axes: Any) -> Numbers:
    return Numbers(x.array.reshape(_widened(x.shape, axes)), x.dtype)


@op("Unsqueeze", since=13, host=_host_unsqueeze)
def unsqueeze(x: Tensor, axes: Numbers) -> Tensor:
    items = axes.list()
    wanted = sorted(axes_of(items, x.dim() + len(items)))
    expect(len(set(wanted)) == len(wanted), f"Unsqueeze names an axis twice: {items}")
    for axis in wanted:
        x = x.unsqueeze(axis)
    return x


@op("Unsqueeze", host=lambda x, *, axes: _host_unsqueeze(x, axes))
def unsqueeze_1(x: Tensor, *, axes: Ints) -> Tensor:
    return unsqueeze(x, Numbers(objects(list(axes)), torch.int64))


def _host_concat(*parts: Numbers, axis: int = 1) -> Any:
    if any(part.array.ndim == 0 for part in parts):
        return NotImplemented
    return Numbers(np.concatenate([part.array for part in parts], axis), parts[0].dtype)


op("Concat", host=_host_concat)(lambda *parts, axis=1: torch.cat(parts, axis))


def _bounds(
    sizes: Any, starts: Any, ends: Any, axes: Any, steps: Any, rank: int
) -> list[tuple[int, Any, Any, Any]]:
    """(axis, start, end, step) as Python slices understand them."""
    starts, ends = list(starts), list(ends)
    wanted = axes_of(axes, rank) if axes is not None else list(range(len(starts)))
    strides = list(steps) if steps is not None else [1] * len(starts)
    if not len(starts) == len(ends) == len(wanted) == len(strides):
        raise OnnxError(
            f"Slice has {len(starts)} starts, {len(ends)} ends, {len(wanted)} axes and {len(strides)} steps"
        )
    expect(len(set(wanted)) == len(wanted), f"Slice names an axis twice: {wanted}")
    return list(zip(wanted, starts, ends, strides, strict=True))


def _host_slice(
    x: Numbers, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None, **_: Any
) -> Any:
    given = [starts, ends, *(v for v in (axes, steps) if v is not None)]
    if any(not isinstance(value, Numbers) or not value.known for value in given):
        return NotImplemented
    index: list[Any] = [slice(None)] * x.array.ndim
    listed = [None if value is None else value.list() for value in (starts, ends, axes, steps)]
    for axis, start, end, step in _bounds(x.shape, listed[0], listed[1], listed[2], listed[3], x.array.ndim):
        index[axis] = _python_slice(start, end, step, x.shape[axis])
    return Numbers(x.array[tuple(index)], x.dtype)


def _python_slice(start: Any, end: Any, step: Any, size: int) -> slice:
    """ONNX clamps both ends; for negative steps an end below -size means before the first element."""
    if step > 0:
        return slice(start, end, step)
    return slice(start, None if end < -size else end, step)


@op("Slice", since=10, host=_host_slice)
def slice_(
    x: Tensor, starts: Numbers, ends: Numbers, axes: Numbers | None = None, steps: Numbers | None = None
) -> Tensor:
    return _slice(
        x,
        starts.list(),
        ends.list(),
        None if axes is None else axes.list(),
        None if steps is None else steps.list(),
    )


@op("Slice", host=lambda x, *, starts, ends, axes=None: _host_slice(x, *_numbers(starts, ends, axes)))
def slice_1(x: Tensor, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Tensor:
    return _slice(x, starts, ends, axes, None)


def _numbers(*lists: Ints | None) -> list[Numbers | None]:
    return [None if items is None else Numbers(objects(list(items)), torch.int64) for items in lists]


def _slice(x: Tensor, starts: Any, ends: Any, axes: Any, steps: Any) -> Tensor:
    for axis, start, end, step in _bounds(x.shape, starts, ends, axes, steps, x.dim()):
        if step == 0:
            raise OnnxError("Slice with step 0")
        if step > 0:
            x = torch.ops.aten.slice.Tensor(x, axis, start, end, step)
        else:
            x = _slice_backwards(x, axis, start, end, step)
    return x


def _slice_backwards(x: Tensor, axis: int, start: Any, end: Any, step: int) -> Tensor:
    length = x.shape[axis]
    first = start + length if start < 0 else start
    first = length - 1 if first > length - 1 else first
    last = end + length if end < 0 else end
    last = -1 if last < -1 else last
    flipped = x.flip(axis)
    # Element i of x is element length - 1 - i of the flipped tensor.
    found: Tensor = torch.ops.aten.slice.Tensor(flipped, axis, length - 1 - first, length - 1 - last, -step)
    return found


def _split(x: Tensor, axis: int, sizes: list[Any] | None, count: int) -> tuple[Tensor, ...]:
    axis = axis_of(axis, x.dim())
    expect(sizes is None or len(sizes) == count, f"Split into sizes {sizes} has {count} outputs")
    if sizes is None:
        each = -(-x.shape[axis] // count)
        sizes = [each] * (count - 1)
        sizes.append(x.shape[axis] - each * (count - 1))
    return tuple(torch.split(x, sizes, axis))


@op("Split", since=13)
def split(
    x: Tensor, sizes: Numbers | None = None, *, axis: int = 0, num_outputs: int | None = None, call: Call
) -> Any:
    count = len(call.outputs)
    expect(
        num_outputs in (None, count) and (sizes is None or num_outputs is None),
        f"Split with num_outputs {num_outputs}{'' if sizes is None else ' and sizes'} has {count} outputs",
    )
    return _split(x, axis, None if sizes is None else sizes.list(), count)


@op("Split", since=2)
def split_2(x: Tensor, *, axis: int = 0, split: Ints | None = None, call: Call) -> Any:
    return _split(x, axis, None if split is None else list(split), len(call.outputs))


@op("Split")
def split_1(
    x: Tensor, sizes: Numbers | None = None, *, axis: int = 0, split: Ints | None = None, call: Call
) -> Any:
    given = list(split) if split is not None else sizes.list() if sizes is not None else None
    return _split(x, axis, given, len(call.outputs))


def _host_expand(x: Numbers, shape: Numbers) -> Any:
    if not shape.known:
        return NotImplemented
    wanted = np.broadcast_shapes(x.shape, tuple(shape.list()))
    return (
        Numbers(np.broadcast_to(x.array, wanted).copy(), x.dtype)
        if np.prod(wanted) <= 1024
        else NotImplemented
    )


@op("Expand", since=8, host=_host_expand)
def expand(x: Tensor, shape: Numbers) -> Tensor:
    sizes = shape.list()
    have = [1] * (len(sizes) - x.dim()) + list(x.shape)
    want = [1] * (len(have) - len(sizes)) + sizes
    # Both ways: a 1 in the given shape keeps the tensor's size.
    return x.expand(
        [
            h if type(w) is int and w == 1 else w if type(h) is int and h == 1 else _joint(h, w)
            for h, w in zip(have, want, strict=True)
        ]
    )


def _joint(have: Any, want: Any) -> Any:
    """The size of a dimension of two that broadcast."""
    if have is want:
        return have
    return have if want == 1 else want


@op("Tile", since=6)
def tile(x: Tensor, repeats: Numbers) -> Tensor:
    return x.repeat(*repeats.list()) if x.dim() else x.clone()


@op("Tile")
def tile_1(x: Tensor, tiles: Numbers, axis: Numbers) -> Tensor:
    counts = [1] * x.dim()
    counts[axis_of(axis.item(), x.dim())] = tiles.item()
    return x.repeat(*counts)


def _check_blocks(name: str, blocksize: int, mode: str) -> None:
    expect(blocksize > 0, f"{name} with blocksize {blocksize}")
    expect(mode in ("DCR", "CRD"), f"unknown mode {mode!r} of {name}")


@op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    _check_blocks("DepthToSpace", blocksize, mode)
    n, c, h, w = x.shape
    if mode == "CRD":
        return torch.pixel_shuffle(x, blocksize)
    parts = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


@op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    _check_blocks("SpaceToDepth", blocksize, mode)
    n, c, h, w = x.shape
    if mode == "CRD":
        return torch.pixel_unshuffle(x, blocksize)
    parts = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    return parts.permute(0, 3, 5, 1, 2, 4).reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


@op("Trilu", since=14)
def trilu(x: Tensor, k: Numbers | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(k.item())
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


@op("ReverseSequence", since=10)
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    swapped = x.movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(swapped.shape[1], device=x.device).unsqueeze(0)
    ends = lengths.unsqueeze(1)
    index = torch.where(steps < ends, ends - 1 - steps, steps)
    index = index.reshape(tuple(index.shape) + (1,) * (swapped.dim() - 2)).expand(swapped.shape)
    return torch.gather(swapped, 1, index).movedim((0, 1), (batch_axis, time_axis))


@op("Cast", since=1, host=lambda x, **attributes: _host_cast(x, **attributes))
def cast(x: Value, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    from staticrt.interop.onnx.casting import cast_to

    return cast_to(as_tensor(x), to, saturate, round_mode)


def _host_cast(x: Numbers, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    from staticrt.interop.onnx.casting import host_cast

    return host_cast(x, to)


@op("CastLike", since=15, host=lambda x, like, **_: NotImplemented)
def cast_like(x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Any:
    from staticrt.interop.onnx.casting import cast_to_dtype, host_cast_to_dtype

    if isinstance(x, Numbers):
        found = host_cast_to_dtype(x, like.dtype)
        if found is not NotImplemented:
            return found
    return cast_to_dtype(as_tensor(x), like.dtype, saturate)
