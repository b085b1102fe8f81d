"""Tensors that `torch.utils.swap_tensors` exchanges, as `module.to()` does under `set_swap_module_params_on_conversion`.

It refuses tensors that C++ code or weak references hold. Compiled callables hold a model's tensors so, and let go of them
before a swap; their next call takes up the new ones.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection
from typing import Any, Protocol

import torch

from staticrt import locks


class Holder(Protocol):
    """What holds tensors between calls."""

    def let_go(self, tensors: Collection[int]) -> None:
        """Drop references other than Python's strong ones to tensors with these ids."""


_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def add_holder(holder: Holder) -> None:
    """Ask `holder` to let go of tensors before they are swapped, while it lives."""
    _watch_swaps()
    _holders.add(holder)


@functools.cache
def _watch_swaps() -> None:
    swap: Any = torch.utils.swap_tensors

    @functools.wraps(swap)
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
        for holder in locks.members(_holders):
            holder.let_go((id(t1), id(t2)))
        swap(t1, t2)

    torch.utils.swap_tensors = swap_tensors
