"""Memory of CPU graphs: a private pool of the host allocator, which serves torch's CPU allocations inside `route()`."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, cast

from staticrt.graphs.native_pool import NativePool
from staticrt.graphs.protocol import LeakInfo, StorageRef
from staticrt.native import _C


class CpuGraphPool(NativePool):
    """`GraphPool` on the CPU."""

    native: _C.CpuPool

    def __init__(self) -> None:
        self.native = _C.CpuPool()

    def __repr__(self) -> str:
        return f"<CpuGraphPool {self.id[0]}_{self.id[1]}: {self.stats().live_blocks} live blocks>"

    def route(self, stream: Any = None) -> AbstractContextManager[Any]:
        return cast(AbstractContextManager[Any], self.native.route())

    def moving(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def adopt(self, ref: StorageRef) -> None:
        """The storage's death frees its block from now on."""
        _C.adopt(cast(_C.StorageRef, ref), self.native)

    def live_ptrs(self) -> set[int]:
        return set(self.native.live())

    def check_live(self, expected: set[int]) -> LeakInfo | None:
        missing, unexpected = self.native.check_live(expected)
        if not missing and not unexpected:
            return None
        return LeakInfo(tuple(missing), tuple((ptr, nbytes, "") for ptr, nbytes in unexpected))

    def trim(self) -> int:
        """Give unused memory back. 0 while a graph exists: a replay writes into free blocks."""
        return self.native.trim()
