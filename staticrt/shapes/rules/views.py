"""Fake rules of views: the same memory with other sizes and strides."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import agree, expression, oblivious, product, rule, same, view_of
from staticrt.shapes.rules.layout import at_most, least
from staticrt.shapes.size_checks import env_of

aten = torch.ops.aten


def is_plain(x: torch.Tensor) -> bool:
    # A view of a lazily conjugated or negated tensor is conjugated or negated lazily, too.
    return x.layout == torch.strided and not x.is_quantized and not x.is_conj() and not x.is_neg()


@rule(aten.alias.default, aten.detach.default)
def _alias(mode: Any, x: torch.Tensor) -> Any:
    return view_of(mode, x, x.shape, x.stride()) if is_plain(x) else None


@rule(aten.transpose.int)
def _transpose(mode: Any, x: torch.Tensor, dim0: int, dim1: int) -> Any:
    rank = x.dim()
    if not is_plain(x) or not (-rank <= dim0 < rank and -rank <= dim1 < rank):
        return None
    order = list(range(rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permuted(mode, x, order)


rule(aten.t.default)(lambda mode, x: _permuted(mode, x, [1, 0]) if x.dim() == 2 and is_plain(x) else None)


@rule(aten.permute.default)
def _permute(mode: Any, x: torch.Tensor, dims: Sequence[int]) -> Any:
    rank = x.dim()
    if not is_plain(x) or not all(-rank <= d < rank for d in dims):
        return None
    order = [d % rank for d in dims]
    return _permuted(mode, x, order) if sorted(order) == list(range(rank)) else None


def _permuted(mode: Any, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    sizes, strides = x.shape, x.stride()
    return view_of(mode, x, [sizes[d] for d in order], [strides[d] for d in order])


@rule(aten.select.int)
def select(mode: Any, x: torch.Tensor, dim: int, index: Any) -> Any:
    rank = x.dim()
    if not is_plain(x) or not -rank <= dim < rank or type(index) is not int:
        return None
    dim %= rank
    sizes, strides = list(x.shape), list(x.stride())
    size, stride = sizes.pop(dim), strides.pop(dim)
    if isinstance(size, int):
        if not -size <= index < size:
            return None
    elif not oblivious() or not _surely_has(size, index):
        return None
    first = index if index >= 0 else index + size
    return view_of(mode, x, sizes, strides, first * stride if index else 0)


@rule(aten.diagonal.default)
def _diagonal(mode: Any, x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = x.dim()
    if not is_plain(x) or offset or not all(-rank <= d < rank for d in (dim1, dim2)):
        return None
    first, second = dim1 % rank, dim2 % rank
    if first == second or not same(x.shape[first], x.shape[second]):
        return None
    others = [d for d in range(rank) if d not in (first, second)]
    strides = x.stride()
    sizes = [x.shape[d] for d in (*others, first)]
    return view_of(mode, x, sizes, [*(strides[d] for d in others), strides[first] + strides[second]])


def _surely_has(size: Any, index: int) -> bool:
    """Whether this call's size has the index; another call's is checked as it runs."""
    hint = size.node.hint
    return hint is not None and -hint <= index < hint


@rule(aten.slice.Tensor)
def _slice(
    mode: Any, x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    rank = x.dim()
    if not is_plain(x) or not -rank <= dim < rank or type(step) is not int or step < 1:
        return None
    dim %= rank
    sizes, strides = list(x.shape), list(x.stride())
    found = slice_bounds(sizes[dim], start, end)
    if found is None:
        return None
    first, size = found
    size = steps_in(size, step)
    if size is None:
        return None
    offset = 0 if isinstance(first, int) and first == 0 else first * strides[dim]
    sizes[dim] = size
    strides[dim] = strides[dim] * step
    return view_of(mode, x, sizes, strides, offset)


def steps_in(size: Any, step: int) -> Any:
    """The number of elements of a slice with a step; None: it depends on torch's symbols."""
    if step == 1:
        return size
    return (size + step - 1) // step if type(size) is int or env_of(size) is not None else None


def slice_bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any] | None:
    """Where a slice begins and how many elements it spans; None where that depends on symbols."""
    start = 0 if start is None else start
    if isinstance(size, int) and type(start) is int and (end is None or type(end) is int):
        first, last, _step = slice(start, end).indices(size)
        return first, max(last - first, 0)
    if type(start) is int and start == 0 and not isinstance(size, int):
        if (
            end is None
            or (type(end) is int and end == sys.maxsize)
            or (isinstance(end, torch.SymInt) and same(end, size))
        ):
            return 0, size
        if isinstance(end, torch.SymInt) and at_most(end, size):
            return 0, end
    # torch's own rule makes minima of symbols or an unbacked symbol.
    if all(bound is None or _is_backed(bound) for bound in (size, start, end)):
        return _guarded_bounds(size, start, end)
    return None


def _is_backed(bound: Any) -> bool:
    """Whether a bound is known for this call's sizes."""
    return isinstance(bound, int) or env_of(bound) is not None or bound.node.has_hint()


def _guarded_bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any] | None:
    """As `slice_bounds`, guarding on where the bounds lie."""
    bounds = []
    for bound in (start, size if end is None else end):
        if bound < 0:
            bound = bound + size
            bound = 0 if bound < 0 else bound
        bounds.append(bound if bound <= size else size)
    first, last = bounds
    return (first, last - first) if first <= last else None


@rule(aten.unsqueeze.default)
def _unsqueeze(mode: Any, x: torch.Tensor, dim: int) -> Any:
    rank = x.dim()
    if not is_plain(x) or not -rank - 1 <= dim <= rank:
        return None
    dim %= rank + 1
    sizes, strides = list(x.shape), list(x.stride())
    stride = 1 if dim == rank else _times(mode, sizes, strides, dim)
    sizes.insert(dim, 1)
    strides.insert(dim, stride)
    return view_of(mode, x, sizes, strides)


def _times(mode: Any, sizes: Sequence[Any], strides: Sequence[Any], dim: int) -> Any:
    return product(mode, [sizes[dim], strides[dim]])


rule(aten.squeeze.dim)(lambda mode, x, dim: _squeezed(mode, x, [dim]))
rule(aten.squeeze.dims)(lambda mode, x, dims: _squeezed(mode, x, dims))
rule(aten.squeeze.default)(lambda mode, x: _squeezed(mode, x, range(x.dim())))


def _squeezed(mode: Any, x: torch.Tensor, dims: Sequence[int]) -> Any:
    rank = x.dim()
    if not is_plain(x) or rank == 0 or not all(-rank <= d < rank for d in dims):
        return None
    chosen = {d % rank for d in dims}
    sizes = x.shape
    # torch's own rules keep every symbol that may be another size than 1, this call's 1 included.
    kept = [d for d in range(rank) if d not in chosen or bool(sizes[d] != 1)]
    strides = x.stride()
    return view_of(mode, x, [sizes[d] for d in kept], [strides[d] for d in kept])


@rule(aten.expand.default)
def _expand(mode: Any, x: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> Any:
    missing = len(size) - x.dim()
    if not is_plain(x) or missing < 0:
        return None
    own_sizes, own_strides = x.shape, x.stride()
    sizes, strides = list(size), [0] * len(size)
    for i in reversed(range(len(size))):
        dim = i - missing
        if dim >= 0:
            own, stride = own_sizes[dim], own_strides[dim]
        else:
            own = 1
            stride = 0 if x.dim() == 0 else _times(mode, sizes, strides, i + 1)
        target = size[i]
        if type(target) is int and target == -1:
            if dim < 0:
                return None
            target = own
        if isinstance(own, int) and own == 1 and not (isinstance(target, int) and target == 1):
            stride = 0
        elif not agree(own, target):
            return None
        sizes[i], strides[i] = target, stride
    return view_of(mode, x, sizes, strides)


@rule(aten.split.Tensor)
def _split(mode: Any, x: torch.Tensor, size: Any, dim: int = 0) -> Any:
    rank = x.dim()
    if not -rank <= dim < rank:
        return None
    whole = x.shape[dim]
    if type(whole) is not int or type(size) is not int:
        return _split_symbolic(mode, x, size, dim % rank)
    if size < 1 or whole < 1:
        return None
    pieces = [min(size, whole - first) for first in range(0, whole, size)]
    return _pieces(mode, x, pieces, dim % rank)


def _split_symbolic(mode: Any, x: torch.Tensor, size: Any, dim: int) -> Any:
    """Pieces of our sizes, whose number is a constant of the trace."""
    whole = x.shape[dim]
    if any(not isinstance(n, int) and env_of(n) is None for n in (whole, size)) or size < 1 or whole < 1:
        return None
    full = int((whole + size - 1) // size) - 1
    return _pieces(mode, x, [*[size] * full, whole - full * size], dim)


@rule(aten.split_with_sizes.default)
def _split_with_sizes(mode: Any, x: torch.Tensor, sizes: Sequence[Any], dim: int = 0) -> Any:
    rank = x.dim()
    if not -rank <= dim < rank:
        return None
    whole = x.shape[dim]
    if not all(s >= 0 if type(s) is int else least(expression(s)) >= 0 for s in sizes):
        return None
    if not agree(sum(sizes), whole):
        return None
    return _pieces(mode, x, sizes, dim % rank)


def _pieces(mode: Any, x: torch.Tensor, pieces: Sequence[Any], dim: int) -> Any:
    if not is_plain(x):
        return None
    sizes, strides = list(x.shape), x.stride()
    views = []
    first: Any = 0
    for piece in pieces:
        sizes[dim] = piece
        begins = isinstance(first, int) and first == 0
        views.append(view_of(mode, x, sizes, strides, 0 if begins else first * strides[dim]))
        first += piece
    return views


@rule(aten.unbind.int)
def _unbind(mode: Any, x: torch.Tensor, dim: int = 0) -> Any:
    rank = x.dim()
    if not is_plain(x) or not -rank <= dim < rank:
        return None
    dim %= rank
    sizes, strides = list(x.shape), list(x.stride())
    count, stride = sizes.pop(dim), strides.pop(dim)
    # A constant of the trace from here on, as there are so many results. Where data decides it, torch's own rule makes
    # pieces of the wrong rank.
    count = int(count)
    return [view_of(mode, x, sizes, strides, i * stride if i else 0) for i in range(count)]
