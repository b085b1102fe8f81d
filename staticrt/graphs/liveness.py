"""Liveness of outputs: whether anything but the tree still holds one.

An output that each replay returns as a new tensor is alive while its storage is. With cached outputs (policy "reuse") the tree
holds the tensor itself, so liveness compares reference counts with those of the tree alone: Python references to the tensor
and to its storage object, C++ owners of the tensor (autograd), and other tensors on the storage (views).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from staticrt.graphs.protocol import StorageRef
from staticrt.graphs.storage import storage_ref

# (depth, index): an output of the node at that depth of a path
PathIndex = tuple[int, int]


class PathOutput:
    """The storage of one output of a node. Outputs that alias each other share one of these.

    Args:
        ref: the storage that the last run of the node gave out.
        ptr: the address at capture; every replay writes there.
        nbytes: size of the storage in bytes.
    """

    __slots__ = ("_storage", "cached", "moved", "nbytes", "ptr", "ref")

    def __init__(self, ref: StorageRef, ptr: int, nbytes: int) -> None:
        self.ref = ref
        self.ptr = ptr
        self.nbytes = nbytes
        self.moved = False  # the storage has memory of its own now and has left the path
        self.cached: torch.Tensor | None = None
        self._storage: torch.UntypedStorage | None = None

    def alive(self) -> bool:
        """Whether anything but the tree holds the output."""
        tensor = self.cached
        if tensor is None:
            # Whoever resizes the storage gives it memory of its own, and the block back to the pool.
            return not self.moved and self.ref.use_count() > 0 and self.ref.data_ptr() == self.ptr
        return (
            sys.getrefcount(tensor) > _CACHED_TENSOR
            or _owners(tensor) > 1
            or self.ref.use_count() > 2
            or sys.getrefcount(self._storage) > _CACHED_STORAGE
        )

    def give_out(self, tensor: torch.Tensor) -> None:
        """Track the storage of the tensor that a replay has just made for this output."""
        self.ref = storage_ref(tensor)
        self.moved = False

    def cache(self, tensor: torch.Tensor) -> None:
        """Keep the tensor so that replays return it again. Autograd and autocast do not count this reference."""
        torch._C._add_cached_tensor(tensor)
        self.give_out(tensor)
        self._storage = tensor.untyped_storage()
        self.cached = tensor

    def drop_cache(self) -> None:
        """Drop the cached tensor: from now on it lives as long as others hold it."""
        if self.cached is not None:
            torch._C._remove_cached_tensor(self.cached)
            self.cached = None
            self._storage = None

    def alive_without(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the output is still alive after these tensors on its storage are dropped.

        Args:
            tensors: each held once by this list and once by the list of inputs; by other code only if it is alive.

        Conservative: may return True for a dead output, never False for a live one.
        """
        if not self.alive():
            return False
        tensor = self.cached
        if tensor is not None:
            mine = sum(t is tensor for t in tensors)
            return not (
                mine > 0
                and mine == len(tensors)
                and sys.getrefcount(tensor) == _CACHED_TENSOR + 2 * mine
                and _owners(tensor) == 1
                and self.ref.use_count() == 2
                and sys.getrefcount(self._storage) == _CACHED_STORAGE
            )
        if not tensors:
            return True
        storage = tensors[
            0
        ].untyped_storage()  # creates the storage's Python object, so that its reference is counted
        if sys.getrefcount(storage) > _STORAGE:
            return True
        distinct = {id(t): t for t in tensors}
        times = {key: sum(id(t) == key for t in tensors) for key in distinct}
        for key in list(distinct):
            # held by: the two lists (each time), `distinct`, the argument of getrefcount
            if sys.getrefcount(distinct[key]) != 2 * times[key] + 2 or _owners(distinct[key]) != 1:
                return True
        return self.ref.use_count() > len(distinct) + 1


def _owners(tensor: torch.Tensor) -> int:
    """C++ owners of the tensor, Python's included."""
    count: int = tensor._use_count()  # type: ignore[attr-defined]
    return count


def _measure() -> tuple[int, int, int]:
    """Reference counts of objects that only the tree holds, measured because they differ between releases of torch."""

    class Holder:
        __slots__ = ("cached", "storage")
        cached: torch.Tensor
        storage: torch.UntypedStorage

    holder = Holder()
    holder.cached = torch.empty(1)
    holder.storage = holder.cached.untyped_storage()
    tensor = holder.cached
    cached_tensor = sys.getrefcount(tensor)
    cached_storage = sys.getrefcount(holder.storage)
    other = [torch.empty(1)]
    storage = other[0].untyped_storage()
    return cached_tensor, cached_storage, sys.getrefcount(storage)


_CACHED_TENSOR, _CACHED_STORAGE, _STORAGE = _measure()


def liveness(path: Sequence[Sequence[PathOutput | None]]) -> list[list[bool]]:
    """Per output of a path, whether it is alive."""
    return [[output is not None and output.alive() for output in level] for level in path]


def differing(before: Sequence[Sequence[bool]], now: Sequence[Sequence[bool]]) -> list[PathIndex]:
    """Where the two differ; `now` may be longer."""
    return [
        (depth, index)
        for depth, (old, new) in enumerate(zip(before, now, strict=False))
        for index, (a, b) in enumerate(zip(old, new, strict=True))
        if a != b
    ]
