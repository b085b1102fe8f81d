"""Memory of CPU graphs: a private pool of the host allocator, which serves torch's CPU allocations inside `route()`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from staticrt.errors import InputError
from staticrt.graphs.protocol import LeakInfo, PoolDelta, PoolId, PoolImage, PoolStats, StorageRef
from staticrt.native import _C

_BLOCK_ALIGNMENT_BYTES = 512


class CpuGraphPool:
    """`GraphPool` on the CPU. Its last reference frees its memory, except blocks that tensors still own."""

    def __init__(self) -> None:
        self.native = _C.CpuPool()

    def __repr__(self) -> str:
        return f"<CpuGraphPool {self.id[0]}_{self.id[1]}: {self.stats().live_blocks} live blocks>"

    @property
    def id(self) -> PoolId:
        return self.native.id

    def route(self, stream: Any = None) -> AbstractContextManager[Any]:
        return cast(AbstractContextManager[Any], self.native.route())

    def moving(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def allocate(self, nbytes: int, align: int = 64) -> int:
        """Allocate a block; `free` returns it. Blocks are aligned to 512 bytes, so any smaller `align` holds."""
        if align < 1 or align > _BLOCK_ALIGNMENT_BYTES or align & (align - 1):
            raise InputError(
                f"align is {align} bytes, expected a power of two up to {_BLOCK_ALIGNMENT_BYTES}"
            )
        return self.native.allocate(nbytes)

    def free(self, ptr: int) -> None:
        self.native.free(ptr)

    def adopt(self, ref: StorageRef) -> None:
        """The storage's death frees its block from now on."""
        _C.adopt(cast(_C.StorageRef, ref), self.native)

    def checkpoint(self) -> PoolImage:
        return self.native.checkpoint()

    def restore(self, image: PoolImage, alive: Sequence[StorageRef]) -> PoolDelta:
        freed, created = self.native.restore(
            cast(_C.PoolImage, image), cast(Sequence[_C.StorageRef], list(alive))
        )
        return PoolDelta(tuple(freed), tuple(created))

    def live_ptrs(self) -> set[int]:
        return set(self.native.live())

    def check_live(self, expected: set[int]) -> LeakInfo | None:
        missing, unexpected = self.native.check_live(expected)
        if not missing and not unexpected:
            return None
        return LeakInfo(tuple(missing), tuple((ptr, nbytes, "") for ptr, nbytes in unexpected))

    def stats(self) -> PoolStats:
        return PoolStats(*self.native.stats())

    def prime(self, nbytes: int) -> None:
        self.native.prime(nbytes)

    def trim(self) -> int:
        """Give unused memory back. 0 while a graph exists: a replay writes into free blocks."""
        return self.native.trim()
