"""Private pools: memory that serves only who is routed to it."""

from __future__ import annotations

import contextlib
import itertools
from types import TracebackType
from typing import Any

import torch

from staticrt.errors import AllocatorError, DeviceError, StaticRuntimeError
from staticrt.native import _C

_numbers = itertools.count(1)
# Pools that the garbage collector ended where the allocator may not be called; the next pool gives them back.
_ended_in_work: list[tuple[_C.MemoryDevice, tuple[int, int]]] = []


class Pool:
    """A private pool of one device.

    `with pool:` routes allocations of this thread to it; contexts of several pools nest, the innermost serves. A
    pool has one context at a time, in one thread (AllocatorError otherwise). Its memory goes to nobody else while
    the pool lives, except to requests of the default pool that would fail (`use_on_oom`). The pool ends with its
    last reference: live memory in it stays valid, free memory goes back.

    Args:
        use_on_oom: its free blocks serve the default pool before that is out of memory.
        no_split: one block per segment, so that each segment can go back as soon as it is free.
    """

    def __init__(self, handle: _C.MemoryDevice, use_on_oom: bool = False, no_split: bool = False) -> None:
        self._handle = handle
        self._torch_pool: Any = None
        self._torch_allocator: Any = None
        self._closed = True  # until the pool exists, there is nothing to end
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

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handle.end_route(self.id)
        self._handle.pool_release(self.id)

    def __del__(self) -> None:
        # At the end of the process the device may be gone, and the memory with it.
        with contextlib.suppress(StaticRuntimeError, TypeError, AttributeError):
            if not self._closed and _C.in_simulated_work():
                _ended_in_work.append((self._handle, self.id))
                self._closed = True
            self.close()

    def __copy__(self) -> Pool:
        raise AllocatorError(
            f"{self!r} cannot be copied: its end would be the end of both", fix="hand on the pool itself"
        )

    def __deepcopy__(self, memo: object) -> Pool:
        return self.__copy__()

    def __reduce__(self) -> str:
        raise AllocatorError(
            f"{self!r} cannot be pickled: it is memory of this process", fix="make a new pool there"
        )

    def is_of(self, handle: _C.MemoryDevice) -> bool:
        """Whether the pool is one of that device."""
        return self._handle.is_same(handle)

    def check_open(self) -> None:
        """Raise an AllocatorError if the pool is closed."""
        if self._closed:
            raise AllocatorError(f"{self!r} is closed", fix="make a new pool")

    def use_count(self) -> int:
        """References: 1, and 1 for each context it is in and each captured graph. 0 after `close`."""
        return self._handle.pool_refs(self.id)

    def hibernate(self) -> int:
        """Give up the memory of free blocks but keep all addresses; graphs must not be replayed until `wake`.

        Returns:
            Bytes that the device has more now.
        """
        self.check_open()
        return self._handle.pool_hibernate(self.id)

    def wake(self) -> None:
        """Have memory at the same addresses again.

        Raises:
            OutOfMemoryError: there is none; the pool stays hibernated.
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

        Segments that torch asks for in a thread that is in this pool's context come from this pool:

            with pool, torch.cuda.use_mem_pool(pool.torch()):
                y = model(x)

        Raises:
            DeviceError: this torch has no CUDA, or the pool is not on a CUDA device.
        """
        self.check_open()
        if torch.version.cuda is None or not torch.cuda.is_available():
            raise DeviceError(
                f"torch {torch.__version__} has no CUDA, so there is no torch.cuda.MemPool",
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
