"""The sizes and strides of pointwise results, as TensorIterator lays them out (quick_fakes.py).

Source: aten/src/ATen/TensorIterator.cpp, `compute_shape` and `reorder_dimensions`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.ops import size_expr
from staticrt.ops.quick_fakes import (
    agree,
    contiguous_strides,
    expression,
    format_strides,
    is_contiguous,
    same,
    same_stride,
)


def broadcast_sizes(tensors: Sequence[torch.Tensor]) -> list[Any] | None:
    """Sizes that all tensors are broadcast to; None where torch has to say."""
    if len(tensors) == 1:
        return list(tensors[0].shape)
    rank = max(t.dim() for t in tensors)
    sizes: list[Any] = [1] * rank
    for tensor in tensors:
        for dim, size in enumerate(tensor.shape, rank - tensor.dim()):
            own = sizes[dim]
            if own is size or (isinstance(size, int) and size == 1):
                continue
            if isinstance(own, int) and own == 1:
                sizes[dim] = size
            elif not agree(own, size):
                return None
    return sizes


def pointwise_layout(
    mode: Any, tensors: Sequence[torch.Tensor], sizes: Sequence[Any] | None = None
) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Sizes and strides of a pointwise operator's result; None where sizes leave it open, or sizes do not fit."""
    if sizes is None:
        sizes = broadcast_sizes(tensors)
    if sizes is None:
        return None
    if all(map(is_contiguous, tensors)):
        return sizes, contiguous_strides(mode, sizes)
    small = any(isinstance(size, int) and size <= 1 for size in sizes)
    if small and (len(sizes) > 3 or 0 in [size for size in sizes if isinstance(size, int)]):
        return None  # an image that is in two formats at once, or a tensor of nothing
    first = tensors[0]
    alike = all(same_layout(first, other) for other in tensors[1:]) and first.dim() == len(sizes)
    if alike and _is_image(first):
        return sizes, first.stride()
    found = _ordered(mode, [_strides(tensor, sizes) for tensor in tensors], sizes)
    if found is not None and small and alike and _is_dense(first, found):
        return sizes, first.stride()
    return None if found is None else (sizes, found)


def _is_dense(x: torch.Tensor, dense: Sequence[Any]) -> bool:
    """Whether the strides of `x` are these, but where a dimension has one element."""
    return all(
        (isinstance(size, int) and size == 1) or same_stride(own, other)
        for size, own, other in zip(x.shape, x.stride(), dense, strict=True)
    )


def _ordered(mode: Any, rows: Sequence[Sequence[Any]], sizes: Sequence[Any]) -> list[Any] | None:
    """Dense strides in the order of dimensions that the operands' strides ask for."""
    order = list(range(len(sizes)))[::-1]  # from the innermost
    for i in range(1, len(order)):
        inner = i
        for outer in range(i - 1, -1, -1):
            answer = _compare(order[outer], order[inner], rows, sizes)
            if answer is None:
                return None
            if answer > 0:
                order[outer], order[inner] = order[inner], order[outer]
                inner = outer
            elif answer < 0:
                break
    dense = contiguous_strides(mode, [sizes[dim] for dim in reversed(order)])
    strides: list[Any] = [1] * len(sizes)
    for dim, stride in zip(reversed(order), dense, strict=True):
        strides[dim] = stride
    return strides


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same sizes and strides."""
    if a is b:
        return True
    return (
        a.dim() == b.dim()
        and all(map(same, a.shape, b.shape))
        and all(map(same_stride, a.stride(), b.stride()))
    )


def _is_image(x: torch.Tensor) -> bool:
    """Channels last, whatever its symbolic sizes are: of one channel or pixel eager takes it for row-major."""
    if x.dim() < 4 or not isinstance(x.shape[1], int) or x.shape[1] == 1:
        return False
    if all(isinstance(size, int) and size == 1 for size in x.shape[2:]):
        return False
    return format_strides(x, x.shape) is not None


def _strides(tensor: torch.Tensor, sizes: Sequence[Any]) -> list[Any]:
    """A tensor's strides in the result's dimensions: 0 where it is broadcast."""
    missing = len(sizes) - tensor.dim()
    strides: list[Any] = [0] * missing
    for size, stride, wanted in zip(tensor.shape, tensor.stride(), sizes[missing:], strict=True):
        broadcast = isinstance(size, int) and size == 1 and not (isinstance(wanted, int) and wanted == 1)
        strides.append(0 if broadcast else stride)
    return strides


def _compare(dim0: int, dim1: int, rows: Sequence[Sequence[Any]], sizes: Sequence[Any]) -> int | None:
    """1: the dimensions swap places, -1: they do not, 0: nothing tells; None: the symbols do not say."""
    for row in rows:
        stride0, stride1 = row[dim0], row[dim1]
        if (isinstance(stride0, int) and stride0 == 0) or (isinstance(stride1, int) and stride1 == 0):
            continue
        order = _order(expression(stride0), expression(stride1))
        if order is None:
            return None
        if order:
            return order
        by_size = _order(expression(sizes[dim0]), expression(sizes[dim1]))
        if by_size is None:
            return None
        if by_size > 0:
            return 1
    return 0


@functools.lru_cache(maxsize=4096)
def _order(a: Any, b: Any) -> int | None:
    """Whether a > b (1), a < b (-1) or a == b (0) for all sizes; None: it depends on them.

    A multiple counts as greater: where the factor is 1, dimensions of one element change places, which is nothing;
    where it is 0, so is the tensor.
    """
    if isinstance(a, int) and isinstance(b, int):
        return (a > b) - (a < b)
    if isinstance(a, size_expr.Expr) or isinstance(b, size_expr.Expr):
        return size_expr.order(size_expr.as_expr(a), size_expr.as_expr(b))
    import sympy

    above, below = (sympy.sympify(a) / sympy.sympify(b)).as_numer_denom()
    if above == below:
        return 0
    if below == 1 and least(above) >= 0:
        return 1
    if above == 1 and least(below) >= 0:
        return -1
    return None


def at_most(a: Any, b: Any) -> bool:
    """Whether size a <= size b, whatever the symbols are."""
    return _at_most(expression(a), expression(b))


@functools.lru_cache(maxsize=4096)
def _at_most(a: Any, b: Any) -> bool:
    if isinstance(a, size_expr.Expr) or isinstance(b, size_expr.Expr):
        return least(size_expr.subtract(size_expr.as_expr(b), size_expr.as_expr(a))) >= 0
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    import sympy

    return least(sympy.expand(sympy.sympify(b) - a)) >= 0


def least(expr: Any) -> int:
    """A bound from below on a size expression of symbols that are at least 1; -1 where none is seen."""
    if isinstance(expr, size_expr.Expr):
        bound = expr.least()
        return -1 if bound is None else max(bound, -1)
    if expr.is_Integer:
        return max(int(expr), -1)
    if expr.is_Symbol:
        return 1 if expr.is_positive else -1
    name = expr.func.__name__
    if name in ("Mod", "PythonMod") and expr.args[1].is_Integer and expr.args[1] > 0:
        return 0
    parts = [least(arg) for arg in expr.args]
    if name == "Max":
        return max(parts)
    if not parts or min(parts) < 0:
        return -1
    if expr.is_Add:
        return sum(parts)
    if expr.is_Mul:
        return math.prod(parts)
    return 0 if name == "FloorDiv" else -1
