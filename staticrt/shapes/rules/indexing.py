"""Fake rules of advanced indexing, and of writes at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import Unknown, agree, contiguous_strides, is_contiguous, new, rule, same
from staticrt.shapes.rules.layout import (
    broadcast_sizes,
    broadcast_strides,
    ordered,
    own_strides,
    preserved_strides,
)
from staticrt.shapes.rules.views import is_plain, select, slice_bounds, steps_in

aten = torch.ops.aten

_INDICES = (torch.int64, torch.int32)


def _indexed(mode: Any, x: torch.Tensor, indices: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
    """Sizes of `x[indices]`, and the strides of each operand in them (`AdvancedIndex` of TensorAdvancedIndexing.cpp)."""
    given = [i for i in indices if i is not None]
    if not given or len(indices) > x.dim() or not is_plain(x):
        raise Unknown
    if any(i.dtype not in _INDICES or i.device != x.device or not is_plain(i) for i in given):
        raise Unknown
    # torch raises where a dimension of size 0 is indexed.
    if any(isinstance(size, int) and size == 0 for size in x.shape):
        raise Unknown
    chosen = broadcast_sizes(given)
    taken = [d for d, index in enumerate(indices) if index is not None]
    left = [d for d in range(x.dim()) if d not in taken]
    together = taken == list(range(taken[0], taken[-1] + 1))
    before = [d for d in left if together and d < taken[0]]
    after = [d for d in left if d not in before]
    sizes = [*(x.shape[d] for d in before), *chosen, *(x.shape[d] for d in after)]
    rows = [[*(x.stride(d) for d in before), *[0] * len(chosen), *(x.stride(d) for d in after)]]
    lead, trail = [1] * len(before), [1] * len(after)
    for index in given:
        if is_contiguous(index) and len(index.shape) == len(chosen) and all(map(same, index.shape, chosen)):
            shape = [*lead, *index.shape, *trail]
            strides: Sequence[Any] = contiguous_strides(mode, shape)
        elif any(isinstance(x.shape[d], int) and x.shape[d] == 1 for d in left):
            raise Unknown  # the strides of the dimensions that reshaping adds would matter
        else:
            shape = [*lead, *chosen, *trail]
            strides = [*lead, *broadcast_strides(index.shape, index.stride(), chosen), *trail]
        rows.append(broadcast_strides(shape, strides, sizes))
    return sizes, rows


@rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(mode: Any, x: torch.Tensor, indices: Sequence[Any]) -> Any:
    sizes, rows = _indexed(mode, x, indices)
    if any(isinstance(size, int) and size == 0 for size in sizes):
        return None
    return new(mode, sizes, x, ordered(mode, rows, sizes))


def _can_put(mode: Any, x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor) -> bool:
    sizes, _rows = _indexed(mode, x, indices)
    if values.dtype != x.dtype or values.device != x.device or not is_plain(values):
        return False
    missing = len(sizes) - values.dim()
    return missing >= 0 and all(
        (isinstance(own, int) and own == 1) or agree(own, size)
        for own, size in zip(values.shape, sizes[missing:], strict=True)
    )


@rule(aten.index_put.default)
def _index_put(
    mode: Any, x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> Any:
    by_mask = _can_put_one(x, indices, values) and not accumulate
    if not by_mask and not _can_put(mode, x, indices, values):
        return None
    return new(mode, x.shape, x, preserved_strides(mode, x))


def _can_put_one(x: torch.Tensor, indices: Sequence[Any], value: torch.Tensor) -> bool:
    """Whether `x[mask] = value` is a number written where a mask of the first dimensions tells."""
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.dtype != torch.bool or value.dim() or value.dtype != x.dtype:
        return False
    if not is_plain(x) or not is_plain(mask) or mask.device != x.device or not 0 < mask.dim() <= x.dim():
        return False
    return all(agree(a, b) for a, b in zip(mask.shape, x.shape[: mask.dim()], strict=True))


@rule(aten.index_put_.default)
def _index_put_in_place(
    mode: Any, x: torch.Tensor, indices: Sequence[Any], values: torch.Tensor, accumulate: bool = False
) -> Any:
    fits = (_can_put_one(x, indices, values) and not accumulate) or _can_put(mode, x, indices, values)
    return x if fits and 0 not in _known(x.stride()) else None


def _known(numbers: Sequence[Any]) -> list[int]:
    return [number for number in numbers if isinstance(number, int)]


def _can_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether slices of `source` fit into slices of `x`, each tensor being plain."""
    rank = x.dim()
    if not all(is_plain(t) and t.device == x.device for t in (x, index, source)):
        return False
    if not rank or rank != source.dim() or not -rank <= dim < rank or source.dtype != x.dtype:
        return False
    if index.dim() != 1 or index.dtype not in _INDICES or not agree(index.shape[0], source.shape[dim]):
        return False
    dim %= rank
    return all(agree(a, b) for d, (a, b) in enumerate(zip(x.shape, source.shape, strict=True)) if d != dim)


@rule(aten.index_add.default)
def _index_add(
    mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Any:
    fits = type(alpha) is int and _can_add(x, dim, index, source)
    # The kernel returns a row-major result for every input layout.
    return new(mode, x.shape, x) if fits else None


@rule(aten.index_add_.default)
def _index_add_in_place(
    mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Any:
    fits = type(alpha) is int and _can_add(x, dim, index, source) and 0 not in _known(x.stride())
    return x if fits else None


@rule(aten.index_copy.default)
def _index_copy(mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    fits = index.dtype == torch.int64 and _can_add(x, dim, index, source)
    return new(mode, x.shape, x) if fits else None


@rule(aten.index_copy_.default)
def _index_copy_in_place(
    mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> Any:
    fits = index.dtype == torch.int64 and _can_add(x, dim, index, source) and 0 not in _known(x.stride())
    return x if fits else None


def _can_scatter(x: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> bool:
    """Whether each index has its place in the other dimensions of `x`, and its element of `source`."""
    tensors = [x, index, source] if isinstance(source, torch.Tensor) else [x, index]
    if not all(is_plain(t) and t.device == x.device and t.dim() == x.dim() for t in tensors):
        return False
    rank = x.dim()
    if not rank or not -rank <= dim < rank or index.dtype != torch.int64:
        return False
    if any(not isinstance(size, int) or size > 0 for size in index.shape) and 0 in _known(index.shape):
        return False  # of no index nothing has to fit
    dim %= rank
    if isinstance(source, torch.Tensor):
        if source.dtype != x.dtype or not all(map(_reaches, index.shape, source.shape)):
            return False
    elif type(source) not in (int, float) or not x.dtype.is_floating_point:
        return False
    return all(_reaches(a, b) for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim)


def _reaches(index: Any, size: Any) -> bool:
    """Whether a dimension of an index is no longer than a tensor's, both numbers or the same."""
    if isinstance(index, int) and isinstance(size, int):
        return index <= size
    return same(index, size) or agree(index, size)


@rule(aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
def _scatter(mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> Any:
    return new(mode, x.shape, x) if _can_scatter(x, dim, index, source) else None


@rule(aten.scatter_.src, aten.scatter_.value, aten.scatter_add_.default)
def _scatter_in_place(mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> Any:
    return x if _can_scatter(x, dim, index, source) and 0 not in _known(x.stride()) else None


@rule(aten.slice_scatter.default)
def _slice_scatter(
    mode: Any,
    x: torch.Tensor,
    src: torch.Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Any:
    rank = x.dim()
    if src.dtype != x.dtype or src.dim() != rank or not -rank <= dim < rank or not is_plain(x):
        return None
    dim %= rank
    found = slice_bounds(x.shape[dim], start, end) if type(step) is int and step > 0 else None
    if found is None and isinstance(x.shape[dim], int):
        return None
    # Where symbols leave open how much a slice spans, the call itself says whether it fits.
    length = src.shape[dim] if found is None else steps_in(found[1], step)
    wanted = [length if d == dim else size for d, size in enumerate(x.shape)]
    strides = own_strides(mode, x)
    if length is None or not all(map(agree, wanted, src.shape)):
        return None
    return new(mode, x.shape, x, strides)


@rule(aten.select_scatter.default)
def _select_scatter(mode: Any, x: torch.Tensor, src: torch.Tensor, dim: int, index: Any) -> Any:
    if src.dtype != x.dtype or not is_plain(x):
        return None
    part, strides = select(mode, x, dim, index), own_strides(mode, x)
    if part is None or part.dim() != src.dim():
        return None
    return new(mode, x.shape, x, strides) if all(map(agree, part.shape, src.shape)) else None
