"""Private pools: memory that serves only allocations routed to it."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch

from staticrt.errors import AllocatorError, DeviceError, StaticRuntimeError
from staticrt.native import _C

_numbers = itertools.count(1)
# Pools that were collected where the allocator must not be called. The next new pool releases them.
_ended_in_work: list[tuple[_C.MemoryDevice, tuple[int, int]]] = []


class Pool:
    """A private pool of one device.

    `with pool:` routes allocations of this thread to it. Contexts of several pools nest; the innermost pool serves. A
    pool has at most one context at a time, in one thread (else AllocatorError). No other allocation gets its memory while
    the pool lives, except requests of the default pool that would fail (`use_on_oom`). The pool ends with its
    last reference: live memory in it stays valid, free memory returns to the device.

    Args:
        use_on_oom: its free blocks serve the default pool before that raises OutOfMemoryError.
        no_split: one block per segment, so that each segment can be returned as soon as it is free.
    """

    def __init__(self, handle: _C.MemoryDevice, use_on_oom: bool = False, no_split: bool = False) -> None:
        self._handle = handle
        self._torch_pool: Any = None
        self._torch_allocator: Any = None
        self._closed = True  # until the allocator has the pool
        self.id: tuple[int, int] = (next(_numbers), 0)
        while _ended_in_work:
            _end(*_ended_in_work.pop())
        handle.pool_retain(self.id, use_on_oom, no_split)
        self._closed = False

    def __repr__(self) -> str:
        return f"<staticrt.memory.Pool {self.id[0]}_{self.id[1]} of {self._handle.name}>"

    def __enter__(self) -> Pool:
        self.check_open()
        self._handle.begin_route(self.id)
        return self

    def __exit__(self, *_error: object) -> None:
        self._handle.end_route(self.id)
        self._handle.pool_release(self.id)

    def __del__(self) -> None:
        # At the end of the process the device and its memory may be gone.
        with contextlib.suppress(StaticRuntimeError, TypeError, AttributeError):
            if not self._closed and _C.in_simulated_work():
                _ended_in_work.append((self._handle, self.id))
                self._closed = True
            self.close()

    def __copy__(self) -> Pool:
        raise AllocatorError(
            f"{self!r} cannot be copied: closing one would close the other", fix="pass the pool itself"
        )

    def __deepcopy__(self, memo: object) -> Pool:
        return self.__copy__()

    def __reduce__(self) -> str:
        raise AllocatorError(
            f"{self!r} cannot be pickled: it is memory of this process", fix="make a new pool there"
        )

    def is_of(self, handle: _C.MemoryDevice) -> bool:
        """Whether the pool belongs to that device."""
        return self._handle.is_same(handle)

    def check_open(self) -> None:
        """Raise an AllocatorError if the pool is closed."""
        if self._closed:
            raise AllocatorError(f"{self!r} is closed", fix="make a new pool")

    def use_count(self) -> int:
        """Number of references: 1, plus 1 per open context and per captured graph. 0 after `close`."""
        return self._handle.pool_refs(self.id)

    def hibernate(self) -> int:
        """Release the memory of free blocks but keep all addresses. Graphs must not be replayed until `wake`.

        Returns:
            Bytes returned to the device.
        """
        self.check_open()
        return self._handle.pool_hibernate(self.id)

    def wake(self) -> None:
        """Map memory at the same addresses again after `hibernate`.

        Raises:
            OutOfMemoryError: there is not enough memory; the pool stays hibernated.
        """
        self.check_open()
        self._handle.pool_wake(self.id)

    def close(self) -> None:
        """End the pool now instead of with its last reference. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._torch_pool = self._torch_allocator = None
        _end(self._handle, self.id)

    def torch(self) -> Any:
        """A `torch.cuda.MemPool` whose segments come from this device's allocator.

        Inside this pool's context, segments that torch requests come from this pool:

            with pool, torch.cuda.use_mem_pool(pool.torch()):
                y = model(x)

        Raises:
            DeviceError: this torch has no CUDA, or the pool is not on a CUDA device.
        """
        self.check_open()
        if torch.version.cuda is None or not torch.cuda.is_available():
            raise DeviceError(
                f"torch {torch.__version__} has no CUDA, so it has no torch.cuda.MemPool",
                fix="install torch with CUDA on a machine with a GPU",
            )
        if not self._handle.name.startswith("cuda:"):
            raise DeviceError(f"{self!r} is not on a CUDA device", fix='make it with device="cuda"')
        if self._torch_pool is None:
            self._torch_allocator = torch.cuda.memory.CUDAPluggableAllocator(
                _C.allocator_library(), "staticrt_alloc", "staticrt_free"
            )
            self._torch_pool = torch.cuda.MemPool(self._torch_allocator.allocator())
        return self._torch_pool


def _end(handle: _C.MemoryDevice, number: tuple[int, int]) -> None:
    handle.pool_release(number)
    if handle.pool_exists(number):
        handle.empty_cache(number)
