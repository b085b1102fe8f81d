"""Helpers of many builders: axes, sizes, checks of attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Numbers, Tensor, as_tensor

Ints: TypeAlias = Sequence[int]
Value: TypeAlias = Any
# Types for which torch has few kernels. They are computed as int64, which has the same low bits.
_NARROW = (torch.uint16, torch.uint32, torch.uint64)


def axis_of(axis: Any, rank: int) -> int:
    """A non-negative axis.

    Raises:
        OnnxError: it lies outside of the rank.
    """
    number = int(axis)
    if not -rank <= number < max(rank, 1):
        raise OnnxError(f"axis {number} of a tensor of rank {rank}", fix="the model is invalid")
    return number + rank if number < 0 else number


def axes_of(axes: Any, rank: int) -> list[int]:
    """Non-negative axes from numbers or a sequence."""
    items = axes.list() if isinstance(axes, Numbers) else list(axes)
    return [axis_of(axis, rank) for axis in items]


def expect(holds: Any, message: str) -> None:
    """Raise OnnxError unless a condition on a node's inputs or attributes holds."""
    if not holds:
        raise OnnxError(message, fix="the model is invalid; export it again")


def scalar(value: Any) -> Any:
    """A Python number if the value is a single known element, else the tensor."""
    if isinstance(value, Numbers) and value.array.size == 1:
        return value.item()
    return as_tensor(value)


def wide(x: Tensor) -> Tensor:
    """Unsigned 16 to 64 bit integers as int64."""
    return x.to(torch.int64) if x.dtype in _NARROW else x


def through_int64(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Apply `function` to tensors of one type, computed as int64 if torch has no kernel for that type."""
    dtype = inputs[0].dtype
    if dtype not in _NARROW:
        return function(*inputs)
    found = function(*[wide(x) for x in inputs])
    return found.to(dtype) if found.dtype is torch.int64 else found


def in_float(x: Tensor) -> Tensor:
    """Half types as float32, for operators that ONNX computes in float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
