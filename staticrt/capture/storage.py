"""Storage primitives and metadata, by the names of `protocol.StoragePrimitives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from staticrt.capture.protocol import StorageRef, TensorMeta
from staticrt.native import _C


def storage_ref(tensor: torch.Tensor) -> StorageRef:
    return _C.storage_ref(tensor)


def tensor_at(meta: TensorMeta) -> torch.Tensor:
    return _C.tensor_at(meta)


def poison(ref: StorageRef, text: str) -> None:
    _C.poison(cast(_C.StorageRef, ref), text)


def rehome(ref: StorageRef) -> int:
    return _C.rehome(cast(_C.StorageRef, ref))


def ptrs_equal(inputs: Sequence[Any], ptrs: Sequence[int | None], indices: Sequence[int]) -> bool:
    return _C.ptrs_equal(inputs, ptrs, indices)


class Writes:
    """Which of some tensors are written from now on, without keeping their memory.

    By version counters, so writes through `.data` are not seen.

    Args:
        tensors: by the numbers that `seen` gives.
        compare: tensors of inference mode have no version: compare their bytes, which are kept meanwhile.
    """

    def __init__(self, tensors: dict[int, torch.Tensor], compare: bool = False) -> None:
        self._counts: list[tuple[int, _C.WriteCount, int]] = []
        self._bytes: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        for number, tensor in tensors.items():
            count = _C.write_count(tensor)
            if count is not None:
                self._counts.append((number, count, count.writes))
            elif compare:
                self._bytes.append((number, tensor, _raw(tensor).clone()))

    def seen(self) -> list[int]:
        """Numbers of written tensors."""
        found = [number for number, count, before in self._counts if count.writes != before]
        found += [number for number, now, before in self._bytes if not torch.equal(_raw(now), before)]
        return sorted(found)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def storage_ptr(tensor: torch.Tensor) -> int:
    """Address of the tensor's storage; 0 if it is empty."""
    return tensor.untyped_storage().data_ptr()


def describe(tensor: torch.Tensor) -> TensorMeta:
    """Everything needed to make this tensor again, but for its conjugate and negative bits."""
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


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a storage, sizes and strides say all about the tensor."""
    return (
        tensor.layout is torch.strided
        and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not tensor.is_quantized
        and not tensor.is_nested
    )
