"""Inputs of a captured graph: their buffers in the pool, the copies before a replay, and shared memory among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.graphs.storage import describe, is_plain, like_bits, storage_ptr, tensor_at

ALIGNMENT_BYTES = 16


def storage_ptrs(inputs: Sequence[Any]) -> list[int]:
    """Per input the address of its storage; 0 for an input without a plain storage."""
    return [
        storage_ptr(value) if isinstance(value, torch.Tensor) and is_plain(value) else 0 for value in inputs
    ]


def is_aligned(tensor: torch.Tensor) -> bool:
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


def without_expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with dimensions of stride 0 narrowed to one element, because all their elements share memory."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def new_buffer(value: torch.Tensor) -> torch.Tensor:
    """An uninitialised buffer laid out like `value`, with its conjugate and negative bits. REQUIRES: allocations are routed to the
    pool."""
    buffer = torch.empty_strided(
        tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=value.device
    )
    return like_bits(buffer, value)


def not_owning(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes in a storage of its own that does not own them."""
    return like_bits(tensor_at(describe(tensor)), tensor)


class Copies:
    """Copies of inputs into their buffers before each replay.

    Args:
        indices: inputs to copy.
        buffers: their buffers, in the same order, not owning.
    """

    def __init__(self, indices: Sequence[int], buffers: Sequence[torch.Tensor]) -> None:
        self.indices = tuple(indices)
        self._buffers = list(buffers)
        self._plain: list[tuple[int, torch.Tensor]] = []
        self._expanded: list[tuple[int, torch.Tensor]] = []
        self._overlapping: list[tuple[int, torch.Tensor]] = []
        self.nbytes = 0
        self.buffer_bytes = sum(buffer.untyped_storage().nbytes() for buffer in buffers)
        for index, buffer in zip(indices, buffers, strict=True):
            small = without_expanded(buffer)
            self.nbytes += small.numel() * small.itemsize
            if torch._debug_has_internal_overlap(small) != 0 and small.numel() > 1 and _overlaps(small):
                self._overlapping.append((index, buffer))
            elif small is buffer:
                self._plain.append((index, buffer))
            else:
                self._expanded.append((index, small))
        self._targets = [buffer for _index, buffer in (*self._plain, *self._expanded)]

    def run(self, inputs: Sequence[Any]) -> None:
        """Copy from `inputs`, all inputs of the call."""
        if self._targets:
            sources = [inputs[index] for index, _buffer in self._plain]
            sources += [without_expanded(inputs[index]) for index, _buffer in self._expanded]
            with torch.no_grad():
                torch._foreach_copy_(self._targets, sources)
        for index, buffer in self._overlapping:
            copy_span(buffer, inputs[index])


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements of the tensor may share memory. Conservative: may return True for a tensor without overlap."""
    extent = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def copy_span(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy all bytes from the first to the last element. For layouts whose elements overlap."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True))
    if source.numel():
        flat = (span,), (1,)
        torch.as_strided(target, *flat).copy_(torch.as_strided(source, *flat))


def overlap_pattern(inputs: Sequence[Any], indices: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Inputs on one storage: (first, other, distance in bytes of their first elements)."""
    first: dict[int, int] = {}
    pattern: list[tuple[int, int, int]] = []
    for index in indices:
        value = inputs[index]
        if not isinstance(value, torch.Tensor) or not is_plain(value):
            continue
        ptr = storage_ptr(value)
        if ptr == 0:
            continue
        if ptr in first:
            pattern.append((first[ptr], index, value.data_ptr() - inputs[first[ptr]].data_ptr()))
        else:
            first[ptr] = index
    return tuple(pattern)
