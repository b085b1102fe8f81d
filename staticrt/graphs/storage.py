"""What graphs do to storages, and metadata of tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import cast

import torch

from staticrt.graphs.protocol import StorageRef, TensorMeta
from staticrt.native import _C

storage_ref: Callable[[torch.Tensor], StorageRef] = _C.storage_ref
tensor_at = _C.tensor_at  # a tensor over bytes it does not own, with a storage of its own
ptrs_equal = _C.ptrs_equal  # whether each tensor inputs[i] of these indices has `data_ptr() == ptrs[i]`
digest = _C.digest  # of the values of dense CPU tensors


def poison(ref: StorageRef, text: str) -> None:
    """Release the storage, and make every later access raise RuntimeError(text). Permanent."""
    _C.poison(cast(_C.StorageRef, ref), text)


def rehome(ref: StorageRef) -> int:
    """Copy the storage to memory of its own; all its views follow. Returns its size in bytes.

    If the storage owned its old bytes, they are freed.
    """
    return _C.rehome(cast(_C.StorageRef, ref))


class Writes:
    """Detects which tensors are written from now on, without keeping their memory alive.

    Args:
        tensors: keyed by the numbers that `seen` returns.
        compare: numbers of tensors whose bytes are copied and compared. This finds writes that do not bump the version
            counter: through `.data`, or in inference mode.
    """

    def __init__(self, tensors: dict[int, torch.Tensor], compare: Collection[int] = ()) -> None:
        self._counts: list[tuple[int, _C.WriteCount, int]] = []
        self._bytes: list[tuple[int, StorageRef, TensorMeta, torch.Tensor]] = []
        for number, tensor in tensors.items():
            count = _C.write_count(tensor)
            if count is not None:
                self._counts.append((number, count, count.writes))
            if number in compare:
                meta = describe(tensor)
                ref = storage_ref(tensor)
                self._bytes.append((number, ref, meta, _raw(ref.tensor(meta))))

    def seen(self) -> list[int]:
        """Numbers of written tensors."""
        found = {number for number, count, before in self._counts if count.writes != before}
        for number, ref, meta, before in self._bytes:
            # A write to a freed storage has no effect. The tensor itself may have got another storage (`x.data = y`).
            if ref.use_count() > 0 and not (
                ref.nbytes() >= meta.nbytes and torch.equal(_raw(ref.tensor(meta)), before)
            ):
                found.add(number)
        return sorted(found)


class Places:
    """Detects which tensors get another shape or storage from now on (`x.t_()`, `x.data = y`).

    Args:
        tensors: keyed by the numbers that `changed` returns; not kept alive.
    """

    def __init__(self, tensors: dict[int, torch.Tensor]) -> None:
        self._before = [(number, weakref.ref(t), describe(t)) for number, t in tensors.items()]

    def changed(self) -> dict[int, torch.Tensor]:
        """The tensors that still exist and whose metadata changed."""
        found: dict[int, torch.Tensor] = {}
        for number, ref, before in self._before:
            tensor = ref()
            if tensor is not None and describe(tensor) != before:
                found[number] = tensor
        return found


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def storage_ptr(tensor: torch.Tensor) -> int:
    """Address of the tensor's storage; 0 if it is empty."""
    return tensor.untyped_storage().data_ptr()


def describe(tensor: torch.Tensor) -> TensorMeta:
    """The metadata from which `tensor_at` makes this tensor again, except its conjugate and negative bits."""
    storage = tensor.untyped_storage()
    return TensorMeta(
        storage.data_ptr(),
        storage.nbytes(),
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
    )


def with_bits(tensor: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    """The same bytes, read as conjugate, negative or both. REQUIRES: `tensor` has neither bit."""
    with torch.no_grad():
        if conj:
            tensor = tensor.conj()
        if neg:
            tensor = torch._neg_view(tensor)
    return tensor


def like_bits(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The same bytes, read as `other` reads its own. REQUIRES: `tensor` has neither bit."""
    return with_bits(tensor, other.is_conj(), other.is_neg())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether storage, sizes and strides describe the tensor completely: no subclass, no sparse, quantized or nested tensor."""
    return (
        tensor.layout is torch.strided
        and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not tensor.is_quantized
        and not tensor.is_nested
    )
