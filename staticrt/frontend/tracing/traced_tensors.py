"""The fake tensors of one trace, and the graph node that gives each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from staticrt.frontend.reasons import SETS_DATA, CannotTrace
from staticrt.frontend.tracing.trace_tensor import show_as_plain


class TracedTensors:
    """Fake tensors are kept alive, so that their ids stay theirs."""

    def __init__(self) -> None:
        self.nodes: dict[int, fx.Node] = {}  # by id of the tensor
        # By id of a detached tensor without a node: what it was detached from.
        self.unread: dict[int, torch.Tensor] = {}
        self._alive: list[tuple[torch.Tensor, int]] = []  # tensors with their storages
        self._memories: set[int] = set()  # of those, in any mode
        self._of_inference: set[int] = set()  # of those, made where the model has turned inference mode on

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (tensor for tensor, _storage in self._alive)

    def track(self, tensor: torch.Tensor, node: fx.Node) -> None:
        show_as_plain(tensor)
        self.nodes[id(tensor)] = node
        memory = tensor.untyped_storage()._cdata
        self._alive.append((tensor, memory))
        if memory not in self._memories:
            self._memories.add(memory)
            if torch.is_inference_mode_enabled() and node.op != "placeholder":
                self._of_inference.add(memory)

    def leave_unread(self, detached: torch.Tensor, source: torch.Tensor) -> None:
        """Keep a detached tensor, which gets a node if an operator reads it."""
        show_as_plain(detached)
        self._alive.append((detached, detached.untyped_storage()._cdata))
        self.unread[id(detached)] = source

    def is_inference(self, value: Any) -> bool:
        """Whether an inference tensor is what eager would give for a fake tensor."""
        return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in self._of_inference

    def check_memory(self, sets_data: bool) -> None:
        """No tensor has been given other memory, or another part of its own, behind the dispatcher's back.

        Args:
            sets_data: `x.data = y` has run.

        Raises:
            CannotTrace: one has.
        """
        if sets_data or any(tensor.untyped_storage()._cdata != storage for tensor, storage in self._alive):
            raise CannotTrace(SETS_DATA, "", even_in_parts=True)
