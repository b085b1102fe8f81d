"""What the programs of an engine hold between calls: weights that are swapped, outputs and arenas given back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from staticrt import executable
from staticrt.native import _C
from staticrt.weights import new_weights

if TYPE_CHECKING:
    from staticrt.entry import Entry
    from staticrt.fast_path import FastPath


class HeldMemory:
    """The part of `Engine` that calls do not go through."""

    function: Callable[..., Any]
    fast: FastPath
    _order: list[Entry]
    _lock: threading.RLock

    def deallocate_output_tensors(self) -> None:
        """With `manage_outputs`: take back the results of the last call, all of which must have been dropped.

        Raises:
            InputError: a result, or a view of one, is still held.
        """
        for native in self._natives():
            native.deallocate_output_tensors()

    def disable_manage_output_tensors(self) -> None:
        """The same, and results are the caller's from now on."""
        for native in self._natives():
            native.disable_manage_output_tensors()

    def swap_weights(self, weights: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """See `CompiledModule.swap_weights`."""
        assert isinstance(self.function, torch.nn.Module)
        pairs = new_weights(self.function, weights, strict)
        with self._lock:
            # Calls being served hold the old tensors. A map over C functions: no thread comes in between.
            deque(map(torch._C._swap_tensor_impl, *zip(*pairs, strict=True)), maxlen=0)
            self.fast.forget()

    def trim(self) -> None:
        """Give back memory that no call uses: arenas of idle frames. The next call takes it again."""
        for native in self._natives():
            native.trim()

    def _natives(self) -> list[_C.Executable]:
        found = [entry.executable for entry in self._order]
        return [e.native for e in found if isinstance(e, executable.StaticExecutable)]
