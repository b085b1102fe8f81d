"""The memory of the model's tensors, to detect code that sets `.data`, which gives a real tensor the memory of a fake."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is a leaf. Autograd raises for some views that were written in place: they are no leaves."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The `.grad` of a plain leaf; of others None, without a warning or a call of theirs."""
    return tensor.grad if type(tensor) in PLAIN and is_leaf(tensor) else None


def requires_grad_of(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor requires gradients; of others False, without a call of theirs."""
    return type(tensor) in PLAIN and tensor.requires_grad


class TensorMemory:
    """The storages of tensors; records nothing until code names `data`."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, Any, Any, Any, Any]] | None = None

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Code may set `data` from here on."""
        self._kept = {}
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        """One more tensor, if any are kept."""
        if self._kept is not None and tensor.layout == torch.strided and not hasattr(tensor, "fake_mode"):
            storage = tensor.untyped_storage()
            self._kept[id(tensor)] = (
                tensor,
                storage,
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
            )

    def changed(self) -> list[torch.Tensor]:
        """Tensors whose memory has changed."""
        kept = (self._kept or {}).values()
        return [tensor for tensor, storage, *_ in kept if tensor.untyped_storage()._cdata != storage._cdata]

    def restore(self) -> None:
        """Restore their memory."""
        from torch.utils._mode_utils import no_dispatch

        for tensor in self.changed():
            _, storage, offset, shape, stride = (self._kept or {})[id(tensor)]
            with no_dispatch(), torch.no_grad():
                tensor.data = torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(
                    storage, offset, shape, stride
                )
