"""What pools of our own allocator have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from staticrt.errors import InputError
from staticrt.graphs.protocol import PoolDelta, PoolId, PoolImage, PoolStats, StorageRef
from staticrt.native import _C

_BLOCK_ALIGNMENT_BYTES = 512


class NativePool:
    """A `GraphPool` in C++. Its last reference frees its memory, except blocks that tensors still own."""

    native: Any

    @property
    def id(self) -> PoolId:
        return cast(PoolId, self.native.id)

    def allocate(self, nbytes: int, align: int = 64) -> int:
        """Allocate a block; `free` returns it. Blocks are aligned to 512 bytes, so any smaller `align` holds."""
        if align < 1 or align > _BLOCK_ALIGNMENT_BYTES or align & (align - 1):
            raise InputError(
                f"align is {align} bytes, expected a power of two up to {_BLOCK_ALIGNMENT_BYTES}"
            )
        return cast(int, self.native.allocate(nbytes))

    def free(self, ptr: int) -> None:
        self.native.free(ptr)

    def checkpoint(self) -> PoolImage:
        return cast(PoolImage, self.native.checkpoint())

    def restore(self, image: PoolImage, alive: Sequence[StorageRef]) -> PoolDelta:
        freed, created = self.native.restore(
            cast(_C.PoolImage, image), cast(Sequence[_C.StorageRef], list(alive))
        )
        return PoolDelta(tuple(freed), tuple(created))

    def stats(self) -> PoolStats:
        return PoolStats(*self.native.stats())
