"""Fake rules of `view`: sizes and strides of the same memory in other dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import (
    Unknown,
    agree,
    contiguous_strides,
    is_contiguous,
    new,
    product,
    rule,
    same,
    same_stride,
    view_of,
    view_strides,
)
from staticrt.shapes.rules.layout import is_dense
from staticrt.shapes.rules.views import is_plain
from staticrt.shapes.size_checks import check, env_of, statically_known_true

aten = torch.ops.aten


@rule(aten.view.default, aten._unsafe_view.default)
def _view(mode: Any, x: torch.Tensor, size: Sequence[Any]) -> Any:
    if not is_plain(x) or any(isinstance(s, int) and s == 0 for s in (*x.shape, *size)):
        return None
    _assume_whole_windows(x.shape, size)
    old = list(map(_known, x.shape))
    sizes = _viewed_sizes(mode, old, list(map(_known, size)))
    if not is_contiguous(x) and _has_batch_of_one(mode, x, sizes):
        sizes[0] = 1
        strides = view_strides(mode, [1, *old[1:]], x.stride(), sizes)
    else:
        strides = (
            contiguous_strides(mode, sizes)
            if is_contiguous(x)
            else view_strides(mode, old, x.stride(), sizes)
        )
    return None if strides is None else view_of(mode, x, sizes, strides)


@rule(aten.as_strided.default)
def _as_strided(
    mode: Any, x: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Any:
    """Elements between the tensor's first and last in memory: other memory may not be there."""
    if not is_plain(x) or any(isinstance(s, int) and s == 0 for s in x.shape):
        return None
    if storage_offset is not None and not same(storage_offset, x.storage_offset()):
        return None
    same_count = is_contiguous(x) and same(product(mode, x.shape), product(mode, size))
    if not (same_count and is_dense(mode, size, stride)):
        steps = (*zip(size, stride, strict=True), *zip(x.shape, x.stride(), strict=True))
        if any(count < 1 or step < 0 for count, step in steps) or _last(size, stride) > _last(
            x.shape, x.stride()
        ):
            return None
    return view_of(mode, x, size, stride)


def _last(sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
    """Where the last element lies after the first."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


@rule(aten.as_strided_scatter.default)
def _as_strided_scatter(
    mode: Any, x: torch.Tensor, source: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], *rest: Any
) -> Any:
    if source.dim() != len(size) or not all(map(same, source.shape, size)) or source.dtype != x.dtype:
        return None
    return None if _as_strided(mode, x, size, stride, *rest) is None else new(mode, x.shape, x)


def _known(size: Any) -> Any:
    """A size as a plain number, if the trace has learnt that it is one."""
    number = None if env_of(size) is None else size.node.maybe_as_int()
    return size if number is None else number


def _assume_whole_windows(old: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Guard, where `h` elements are viewed as `h // n` windows of `n`, that this comes out even, as it does in this call.

    That `h // n * n` is `h` would say the same; a remainder of 0 also tells what `h` is in later views.
    """
    numbers = {n for n in wanted if type(n) is int and n > 1}
    counts = [n for n in wanted if env_of(n) is not None]
    for size in old if numbers and counts else ():
        env = env_of(size)
        if env is None or not env.is_open:
            continue
        for n in sorted(numbers):
            windows = size // n
            if any(same(windows, count) for count in counts) and windows.node.hint * n == size.node.hint:
                check(size % n == 0)


def _viewed_sizes(mode: Any, old: list[Any], wanted: Sequence[Any]) -> list[Any]:
    """`wanted` with its -1 worked out; raises `Unknown` where it does not surely hold as many elements as `old`.

    A size of `old` that is guarded to be a number becomes that number.
    """
    sizes = list(wanted)
    unknown = [i for i, s in enumerate(sizes) if isinstance(s, int) and s == -1]
    if len(unknown) > 1 or any(isinstance(s, int) and s < -1 for s in sizes):
        raise Unknown
    for size in sizes if unknown else ():  # data may decide that one is 0: any size would do for the -1
        if not isinstance(size, int) and env_of(size) is None and not statically_known_true(size != 0):
            check(size != 0)
    # Sizes that are on both sides go: what is left mostly are numbers.
    rest_old = [s for s in old if not (isinstance(s, int) and s == 1)]
    rest_new = []
    left = []  # positions of `rest_new`
    for i, size in enumerate(sizes):
        if i in unknown or (isinstance(size, int) and size == 1):
            continue
        for j, other in enumerate(rest_old):
            if same(size, other):
                del rest_old[j]
                break
        else:
            rest_new.append(size)
            left.append(i)
    if not unknown and all(isinstance(size, int) for size in rest_old):
        for i in left:  # what they multiply to is a number, so they hardly are anything else in another call
            sizes[i] = int(sizes[i])
        if math.prod(sizes[i] for i in left) != math.prod(rest_old):
            raise Unknown
        return sizes
    if unknown and _comes_out_even(mode, rest_old, rest_new):
        sizes[unknown[0]] = product(mode, rest_old) // product(mode, rest_new)
        return sizes
    if unknown:  # -1 next to a batch, of which two arguments have one each
        rest_new = [size for size in rest_new if isinstance(size, int) or not _take_equal(rest_old, size)]
    if not unknown:
        if rest_old or rest_new:
            if not agree(product(mode, rest_old), product(mode, rest_new)):
                raise Unknown
            if len(rest_old) == 1 and all(isinstance(size, int) for size in rest_new):
                old[next(i for i, size in enumerate(old) if size is rest_old[0])] = math.prod(rest_new)
        return sizes
    if not all(isinstance(s, int) for s in rest_new):
        return _divided(mode, sizes, unknown[0], rest_old, rest_new)
    divisor = product(mode, rest_new)
    numbers = product(mode, [s for s in rest_old if isinstance(s, int)])
    if divisor == 0:
        raise Unknown
    if numbers % divisor:
        return _divided(mode, sizes, unknown[0], rest_old, rest_new)
    others = [s for s in rest_old if not isinstance(s, int)]
    sizes[unknown[0]] = product(mode, [*others, numbers // divisor])
    return sizes


def _comes_out_even(mode: Any, old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Whether a product of our sizes is seen to be a multiple of another: adds no guard."""
    whole, divisor = product(mode, old), product(mode, new)
    if env_of(whole) is None and env_of(divisor) is None:
        return False
    return statically_known_true(divisor > 0) and statically_known_true(whole % divisor == 0)


def _divided(mode: Any, sizes: list[Any], unknown: int, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """`sizes` with the unknown one worked out by dividing our symbolic sizes, guarding that it comes out even."""
    whole, divisor = product(mode, old), product(mode, new)
    if (env_of(whole) is None and env_of(divisor) is None) or not divisor > 0 or whole % divisor != 0:
        raise Unknown
    sizes[unknown] = whole // divisor
    return sizes


def _take_equal(sizes: list[Any], wanted: Any) -> bool:
    """Take out a symbolic size that is `wanted` in this call, guarding on it; False: there is none."""
    for index, size in enumerate(sizes):
        if not isinstance(size, int) and agree(wanted, size):
            del sizes[index]
            return True
    return False


def _has_batch_of_one(mode: Any, x: torch.Tensor, sizes: Sequence[Any]) -> bool:
    """Whether a symbolic batch is 1, which is asked, and guarded, where a view of an image then has other strides.

    Kernels of images take the memory format from the strides of all dimensions, those of size 1 included.
    """
    batch = x.shape[0] if x.dim() else 1
    if (
        len(sizes) not in (4, 5)
        or isinstance(batch, int)
        or env_of(batch) is None
        or not same(batch, sizes[0])
    ):
        return False
    many = view_strides(mode, x.shape, x.stride(), sizes)
    one = view_strides(mode, [1, *x.shape[1:]], x.stride(), [1, *sizes[1:]])
    if many is None or one is None:
        return bool(batch == 1)
    # Only channels that lie next to each other make a layout that such kernels tell from the ordinary one.
    is_image = same_stride(many[1], 1) or same_stride(one[1], 1)
    return is_image and not all(map(same_stride, many, one)) and bool(batch == 1)
