"""The sizes and strides of pointwise results, as TensorIterator computes them.

Source: aten/src/ATen/TensorIterator.cpp, `compute_shape` and `reorder_dimensions`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes import size_division, size_expr
from staticrt.shapes.fake_results import (
    Unknown,
    agree,
    channels_last_strides,
    contiguous_strides,
    expression,
    is_contiguous,
    new,
    product,
    same,
    same_stride,
)
from staticrt.shapes.size_checks import env_of


def broadcast_sizes(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The sizes that all tensors are broadcast to; raises `Unknown` where they do not fit."""
    return broadcast([tensor.shape for tensor in tensors])


def broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The common sizes after broadcasting; raises `Unknown` where they do not fit."""
    if len(shapes) == 1:
        return list(shapes[0])
    rank = max(map(len, shapes))
    sizes: list[Any] = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, rank - len(shape)):
            own = sizes[dim]
            if own is size or (isinstance(size, int) and size == 1):
                continue
            if isinstance(own, int) and own == 1:
                sizes[dim] = size
            elif not agree(own, size):
                raise Unknown
    return sizes


def pointwise_layout(
    mode: Any,
    tensors: Sequence[torch.Tensor],
    wraps_number: bool = False,
    cast: Sequence[bool] = (),
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Sizes and strides of a pointwise operator's result.

    Args:
        wraps_number: one operand is a number, wrapped in a tensor without dimensions.
        cast: which operands are copied to another dtype before.

    Raises:
        Unknown: they depend on symbols, or the sizes do not fit.
    """
    sizes = broadcast_sizes(tensors)
    if all(map(is_contiguous, tensors)):
        return sizes, contiguous_strides(mode, sizes)
    if 0 in [size for size in sizes if isinstance(size, int)]:
        raise Unknown  # strides of a tensor of nothing
    operands: list[tuple[Sequence[Any], Sequence[Any]]] = [
        (tensor.shape, preserved_strides(mode, tensor) if cast and cast[index] else tensor.stride())
        for index, tensor in enumerate(tensors)
    ]
    found = _common_layout(mode, operands, sizes) if not wraps_number or not sizes else None
    if found is None:
        found = ordered(mode, [broadcast_strides(*operand, sizes) for operand in operands], sizes)
    return sizes, found


def _common_layout(mode: Any, operands: Sequence[Any], sizes: Sequence[Any]) -> Sequence[Any] | None:
    """The strides that operands of one size share (`compute_fast_setup_type`); None where they do not."""
    if any(len(shape) != len(sizes) or not all(map(same, shape, sizes)) for shape, _strides in operands):
        return None
    formats = [contiguous_strides(mode, sizes)]
    if len(sizes) == 4:
        formats.append(channels_last_strides(mode, sizes))
    for strides in formats:
        if all(agree_on_rows(own, strides, sizes) for _shape, own in operands):
            return strides
    first: Sequence[Any] = operands[0][1]
    if is_dense(mode, sizes, first) and all(
        all(map(same_stride, own, first)) for _shape, own in operands[1:]
    ):
        return first
    return None


def agree_on_rows(strides: Sequence[Any], others: Sequence[Any], sizes: Sequence[Any]) -> bool:
    """Whether strides are equal, dimensions of size 1 left aside."""
    return all(
        (isinstance(size, int) and size == 1) or same_stride(own, other)
        for size, own, other in zip(sizes, strides, others, strict=True)
    )


def is_dense(mode: Any, sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether a tensor is certainly non-overlapping and dense."""
    rest = [
        (size, stride)
        for size, stride in zip(sizes, strides, strict=True)
        if not (isinstance(size, int) and size == 1)
    ]
    expected: Any = 1
    while rest:
        place = next((i for i, (_size, stride) in enumerate(rest) if same_stride(stride, expected)), None)
        if place is None:
            return False
        expected = product(mode, [expected, rest.pop(place)[0]])
    return True


def preserved_strides(mode: Any, x: torch.Tensor) -> Sequence[Any]:
    """Strides of a copy of `x` in `torch.preserve_format`: its own, or dense ones in their order (`empty_like`).

    Raises:
        Unknown: they depend on symbols.
    """
    sizes = x.shape
    if is_contiguous(x):
        return x.stride()
    if 0 in [size for size in sizes if isinstance(size, int)]:
        raise Unknown
    if is_dense(mode, sizes, x.stride()):
        return x.stride()
    return ordered(mode, [x.stride()], sizes)


def own_strides(mode: Any, x: torch.Tensor) -> Sequence[Any]:
    """The strides of `x`, which `clone_preserve_strides` keeps; raises `Unknown` where elements may overlap."""
    if not is_dense(mode, x.shape, x.stride()) and not _has_elements_apart(x):
        raise Unknown
    return x.stride()


def _has_elements_apart(x: torch.Tensor) -> bool:
    """Whether each stride exceeds the extent of all smaller ones. Adds guards where sizes are symbolic."""
    dims = [
        (tuple(map(_hint, dim)), *dim)
        for dim in zip(x.stride(), x.shape, strict=True)
        if type(dim[1]) is not int or dim[1] != 1
    ]
    if any(None in hints or hints[1] == 0 for hints, _stride, _size in dims):
        return False
    reach: Any = 0
    for _hints, stride, size in sorted(dims, key=lambda dim: dim[0]):
        if not stride > reach:
            return False
        reach = reach + (size - 1) * stride
    return True


def _hint(number: Any) -> Any:
    """The number in this call; None: data decides it."""
    return number if type(number) is int else number.node.hint


def copied_strides(mode: Any, x: torch.Tensor, memory_format: torch.memory_format | None) -> Sequence[Any]:
    """Strides of a copy of `x` in a memory format; raises `Unknown` where they depend on symbols, or the rank does not fit."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(mode, x)
    if memory_format is torch.contiguous_format:
        return contiguous_strides(mode, x.shape)
    if {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim()) is not memory_format:
        raise Unknown
    return channels_last_strides(mode, x.shape)


def suggested_strides(mode: Any, x: torch.Tensor, sizes: Sequence[Any]) -> Sequence[Any]:
    """Strides for `sizes` in the memory format that `x` suggests; raises `Unknown` where that depends on symbols.

    Source: c10/core/MemoryFormat.h, `is_channels_last_strides_2d_s4`.
    """
    is_image = suggests_image(mode, x)
    if is_image is None:
        raise Unknown
    return channels_last_strides(mode, sizes) if is_image else contiguous_strides(mode, sizes)


def new_as_suggested(mode: Any, sizes: Sequence[Any], x: torch.Tensor) -> torch.Tensor:
    """A fake tensor of `sizes` with `suggested_strides`."""
    return new(mode, sizes, x, suggested_strides(mode, x, sizes))


def suggests_image(mode: Any, x: torch.Tensor) -> bool | None:
    rank = x.dim()
    if rank not in (4, 5) or is_contiguous(x):
        return False
    shape, strides = x.shape, x.stride()
    inner = [1, *range(rank - 1, 1, -1)]  # channels, then pixels
    if isinstance(strides[1], int) and strides[1] == 0:
        return False
    if 0 in [size for size in shape if isinstance(size, int)]:
        return False
    for before, dim in zip(inner, [*inner[1:], 0], strict=True):
        least_stride = product(mode, [strides[before], shape[before]])
        answer = _order(expression(strides[dim]), expression(least_stride))
        if answer is None:
            return None
        if answer < 0:
            return False
    # Of one channel and one pixel the format is open, and taken for row-major.
    if all(isinstance(shape[dim], int) and shape[dim] == 1 for dim in inner):
        return False
    if any(isinstance(shape[dim], int) and shape[dim] > 1 for dim in inner):
        return True
    # Our symbols may be asked, which guards on the answer.
    return True if any(env_of(shape[dim]) is not None and shape[dim] > 1 for dim in inner) else None


def ordered(mode: Any, rows: Sequence[Sequence[Any]], sizes: Sequence[Any]) -> list[Any]:
    """Dense strides in the order of dimensions that the operands' strides ask for; raises `Unknown` where symbols decide it."""
    order = list(range(len(sizes)))[::-1]  # from the innermost
    for i in range(1, len(order)):
        inner = i
        for outer in range(i - 1, -1, -1):
            answer = _compare(order[outer], order[inner], rows, sizes)
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


def broadcast_strides(shape: Sequence[Any], strides: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
    """A tensor's strides in the result's dimensions: 0 where it is broadcast."""
    missing = len(sizes) - len(shape)
    result: list[Any] = [0] * missing
    for size, stride, wanted in zip(shape, strides, sizes[missing:], strict=True):
        is_broadcast = isinstance(size, int) and size == 1 and not (isinstance(wanted, int) and wanted == 1)
        result.append(0 if is_broadcast else stride)
    return result


def _compare(dim0: int, dim1: int, rows: Sequence[Sequence[Any]], sizes: Sequence[Any]) -> int:
    """1: the dimensions change places, -1: they do not, 0: undecided by this operand."""
    for row in rows:
        stride0, stride1 = row[dim0], row[dim1]
        if (isinstance(stride0, int) and stride0 == 0) or (isinstance(stride1, int) and stride1 == 0):
            continue
        if order := _ordered_here(stride0, stride1):
            return order
        if _ordered_here(sizes[dim0], sizes[dim1]) > 0:
            return 1
    return 0


def _ordered_here(a: Any, b: Any) -> int:
    """The order of two strides or sizes, of our symbols in this call, with a guard; raises `Unknown` for torch's symbols."""
    always = _order(expression(a), expression(b))
    if always is not None:
        return always
    env = env_of(a) or env_of(b)
    if env is None:
        raise Unknown
    first, second = (size_expr.as_expr(expression(x)) for x in (a, b))
    known = size_division.order(first, second, env.is_at_least)
    if known is not None:
        return known
    return 1 if a > b else -1 if a < b else 0


@functools.lru_cache(maxsize=4096)
def _order(a: Any, b: Any) -> int | None:
    """Whether a > b (1), a < b (-1) or a == b (0) for all sizes; None: it depends on them.

    A multiple counts as greater. Where the factor is 1, dimensions of size 1 change places, which makes no difference;
    where it is 0, the tensor is empty.
    """
    if isinstance(a, int) and isinstance(b, int):
        return (a > b) - (a < b)
    if isinstance(a, size_expr.Expr) or isinstance(b, size_expr.Expr):
        return size_division.order(size_expr.as_expr(a), size_expr.as_expr(b))
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
    """Whether size a <= size b for all values of the symbols."""
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
    """A lower bound of a size expression whose symbols are at least 1; -1 where none is found."""
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
