"""The machine's limits, measured: peak GEMM speed and copy bandwidths."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

GEMM_SIZES = (512, 1024)
# Two sizes of one copy in bytes, whose difference in time leaves the call's own cost out. Source and
# destination of the larger fill at most 24 KiB (an L1 cache has 32 or more), 192 KiB (an L2 cache has 256
# or more), 4 MiB, 512 MiB (more than any cache).
COPIES = {
    "l1": (4 << 10, 12 << 10),
    "l2": (48 << 10, 96 << 10),
    "l3": (1 << 20, 2 << 20),
    "memory": (0, 256 << 20),
}
_MEMORY_COPY_BYTES = 48 << 20  # enough for a report; the benchmark takes COPIES' size
_SECONDS = 0.03  # for one figure of a report


def gemm_routes(size: int) -> dict[str, Callable[[], Any]]:
    """Ways to multiply two square matrices, float32 [size, size] each."""
    a, b, out = (torch.randn(size, size) for _ in range(3))
    routes: dict[str, Callable[[], Any]] = {"mm": lambda: torch.mm(a, b, out=out)}
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(b, size)
        linear = torch.ops.mkldnn._linear_pointwise
        routes["mkldnn packed linear"] = lambda: linear(a, packed, None, "none", [], "")
    return routes


def cache_of(moved_bytes: int) -> str:
    """The smallest cache that holds so many bytes, or "memory"."""
    return next((name for name, sizes in COPIES.items() if moved_bytes <= 2 * sizes[1]), "memory")


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The machine's limits.

    Args:
        flops_per_s: float32 matrix products, best route.
        bytes_per_s: copies (read + written) whose data lies in l1, l2, l3, memory; on one thread.
        threads: what the products ran on.
    """

    flops_per_s: float
    bytes_per_s: dict[str, float]
    threads: int

    def floor_ns(self, flops: int, moved_bytes: int) -> float:
        """The least time for so much arithmetic and so many bytes, whichever takes longer.

        Bytes pass at the speed of the smallest cache they all fit into.
        """
        return max(flops / self.flops_per_s, moved_bytes / self.bytes_per_s[cache_of(moved_bytes)]) * 1e9

    def raised_to(self, seen: Iterable[tuple[int, int, float]]) -> Roofline:
        """Raise the limits to what was reached, because limits measured on a busy machine may be too low.

        Args:
            seen: (flops, bytes, ns) of each thing that ran.
        """
        flops_per_s, bytes_per_s = self.flops_per_s, dict(self.bytes_per_s)
        for flops, moved_bytes, ns in seen:
            if ns > 0 and moved_bytes > 0:
                flops_per_s = max(flops_per_s, flops / ns * 1e9)
                level = cache_of(moved_bytes)
                bytes_per_s[level] = max(bytes_per_s[level], moved_bytes / ns * 1e9)
        return Roofline(flops_per_s, bytes_per_s, self.threads)


def _best_ns(call: Callable[[], Any]) -> float:
    """Least time of one call; short calls run in blocks, so that the clock costs nothing."""
    call()
    count, best, end = 1, float("inf"), time.perf_counter() + _SECONDS
    while True:
        begin = time.perf_counter_ns()
        for _ in range(count):
            call()
        elapsed = time.perf_counter_ns() - begin
        best = min(best, elapsed / count)
        if time.perf_counter() > end:
            return best
        if elapsed < 20_000:
            count *= 2


def _copy_bytes_per_s(small: int, large: int) -> float:
    source, target = torch.ones(large, dtype=torch.uint8), torch.zeros(large, dtype=torch.uint8)
    begin, end = source.data_ptr(), target.data_ptr()
    times = [_best_ns(lambda size=size: ctypes.memmove(end, begin, size)) for size in (small, large)]  # type: ignore[misc]
    return 2 * (large - small) / max(times[1] - times[0], 1.0) * 1e9


@functools.cache
def _measure(threads: int) -> Roofline:
    with torch.no_grad():
        speeds = [
            2 * GEMM_SIZES[0] ** 3 / _best_ns(route) * 1e9 for route in gemm_routes(GEMM_SIZES[0]).values()
        ]
    copies = {
        name: _copy_bytes_per_s(0 if name == "memory" else small, min(large, _MEMORY_COPY_BYTES))
        for name, (small, large) in COPIES.items()
    }
    return Roofline(max(speeds), copies, threads)


def roofline() -> Roofline:
    """The limits with torch's present number of threads; measured once per process and number (0.3 s)."""
    return _measure(torch.get_num_threads())
