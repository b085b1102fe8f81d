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
