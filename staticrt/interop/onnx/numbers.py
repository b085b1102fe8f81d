"""Values known while a model is traced: shapes, axes, sizes, scales.

ONNX computes shapes with tensors (`Shape`, `Gather`, `Concat`, `Reshape`). As tensors, their elements would be
data that no trace knows; as `Numbers` they are Python numbers or symbolic sizes, so a reshape stays a reshape
for every size, and the arithmetic vanishes from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
MAX_NUMBERS = 1024  # larger values are data, not shapes, and stay tensors
Tensor: TypeAlias = torch.Tensor


class Numbers:
    """A small array of Python or symbolic numbers, with the dtype that it has as a tensor.

    Args:
        array: objects, of any shape.
        dtype: dtype of the tensor it stands for.
    """

    __slots__ = ("array", "dtype")

    def __init__(self, array: Any, dtype: torch.dtype) -> None:
        self.array = array if isinstance(array, np.ndarray) and array.dtype == object else objects(array)
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def known(self) -> bool:
        """Whether all elements are plain Python numbers."""
        return not any(isinstance(item, SYMBOLIC) for item in self.array.flat)

    def list(self) -> list[Any]:
        """Elements in row-major order."""
        return list(self.array.flat)

    def item(self) -> Any:
        """The only element."""
        (value,) = self.array.flat
        return value

    def tensor(self) -> Tensor:
        """As a tensor; symbolic elements become operators on sizes."""
        if self.known:
            return known_tensor(self.list(), self.shape, self.dtype)
        parts = [_scalar(item, self.dtype) for item in self.array.flat]
        return parts[0].reshape(self.shape) if len(parts) == 1 else torch.stack(parts).reshape(self.shape)

    def __repr__(self) -> str:
        return f"Numbers({self.array.tolist()}, {self.dtype})"


def objects(values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, np.dtype[np.object_]]:
    """An object array of the given elements, which may be symbolic; `values` is flat if `shape` is given."""
    if shape is None:
        if not isinstance(values, (list, tuple)):
            values, shape = [values], ()
        else:
            shape = (len(values),)
    found = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        found[index] = value
    return found.reshape(shape)


def known_tensor(values: list[Any], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A real tensor, made outside of all modes, so that it is a constant in a trace."""
    from torch.utils._mode_utils import no_dispatch

    with no_dispatch():
        if dtype is torch.bool:
            values = [bool(value) for value in values]
        return torch.tensor(values, dtype=dtype).reshape(shape)


def _scalar(item: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(item, torch.SymBool):
        item = bool(item)
    return torch.full((), item, dtype=dtype)


def as_tensor(value: Any) -> Any:
    """A value as a tensor. Sequences and None are returned unchanged."""
    return value.tensor() if isinstance(value, Numbers) else value


def as_numbers(value: Any) -> Any:
    """A value as Python numbers. In a trace, elements of a tensor become unbacked symbols."""
    if isinstance(value, Tensor):
        count = value.numel()
        flat = value.reshape(-1)
        if torch.compiler.is_compiling():
            items: list[Any] = [flat[index].item() for index in range(int(count))]
        else:
            items = flat.tolist()
        return Numbers(objects(items, tuple(value.shape)), value.dtype)
    return value


def whole(value: Any) -> Any:
    """A number as an integer, rounded towards zero; a symbolic one stays symbolic."""
    return torch.sym_int(value)  # type: ignore[no-untyped-call]


def real(value: Any) -> Any:
    """A number as a float; a symbolic one stays symbolic."""
    return torch.sym_float(value)  # type: ignore[no-untyped-call]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """One element as another type, with C's rules: truncation towards zero, rounding to the float type."""
    if isinstance(value, torch.SymBool):
        value = bool(value)  # a guard of the trace
    if dtype is torch.bool:
        return bool(value != 0)
    if dtype.is_floating_point:
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return real(value)
        if dtype is torch.float32:
            return float(np.float32(value))
        if dtype is torch.float16:
            return float(np.float16(value))
        return float(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return whole(value)
    number, limits = int(value), torch.iinfo(dtype)
    if limits.min <= number <= limits.max:
        return number
    return (number - limits.min) % (1 << limits.bits) + limits.min


def apply(function: Callable[..., Any], inputs: Iterable[Numbers], dtype: torch.dtype) -> Numbers:
    """`function` elementwise over broadcast inputs; results are rounded to `dtype`."""
    arrays = np.broadcast_arrays(*[value.array for value in inputs])
    shape = arrays[0].shape
    flat = [cast(function(*items), dtype) for items in zip(*[array.flat for array in arrays], strict=True)]
    return Numbers(objects(flat, shape), dtype)
