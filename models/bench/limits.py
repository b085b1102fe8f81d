"""The machine's limits as torch reaches them, which give a lower bound for every model's time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from staticrt.models.bench.job import Setting
from staticrt.models.bench.timing import hot_call
from staticrt.tools.report.roofline import COPIES, GEMM_SIZES, Roofline, gemm_routes

MOST_SECONDS = 0.1  # for one figure


def _best_ns(call: Callable[..., Any], arguments: Sequence[Any], seconds: float, threads: int) -> float:
    """Least time of a call; CPU time on one thread, which does not count what others run meanwhile."""
    timed = hot_call(call, arguments, seconds=seconds)
    return min(timed.best_ns, timed.best_cpu_ns) if threads == 1 else timed.best_ns


def _copy_bandwidth(sizes: tuple[int, int], seconds: float) -> float:
    """Bytes read plus bytes written per second, on one thread."""
    source, target = torch.ones(sizes[1], dtype=torch.uint8), torch.zeros(sizes[1], dtype=torch.uint8)
    begin, end = source.data_ptr(), target.data_ptr()
    small, large = (_best_ns(ctypes.memmove, (end, begin, size), seconds, 1) for size in sizes)
    return 2 * (sizes[1] - sizes[0]) / max(large - small, 1.0) * 1e9


def _gemm_speeds(seconds: float, threads: int) -> dict[str, float]:
    """FLOP/s of each route at its best size."""
    speeds: dict[str, float] = {}
    for size in GEMM_SIZES:
        for name, route in gemm_routes(size).items():
            speed = 2 * size**3 / _best_ns(route, (), seconds, threads) * 1e9
            speeds[name] = max(speed, speeds.get(name, 0.0))
    return speeds


def measure(setting: Setting) -> dict[str, Any]:
    """GEMM peak (FLOP/s, float32, best route), copy bandwidths (bytes/s, read + write), costs of empty calls (ns).

    Copies run on one thread; products on the setting's.
    """
    one = torch.ones(1)
    seconds = min(MOST_SECONDS, setting.seconds)
    with torch.no_grad():
        routes = _gemm_speeds(seconds, setting.threads)
        return {
            "gemm_flops_per_s": max(routes.values()),
            "gemm_routes": routes,
            "copy_bytes_per_s": {name: _copy_bandwidth(sizes, seconds) for name, sizes in COPIES.items()},
            "python_call_ns": _best_ns(lambda x: x, (one,), seconds / 2, 1),
            "module_call_ns": _best_ns(nn.Identity(), (one,), seconds / 2, 1),
            "smallest_op_ns": _best_ns(torch.relu, (one,), seconds / 2, 1),
            "threads": setting.threads,
        }


def floor_s(counts: dict[str, Any], limits: dict[str, Any]) -> float | None:
    """The least seconds the machine needs for the counted work; None where it or the limits were not measured."""
    if counts.get("flops") is None or not limits.get("gemm_flops_per_s"):
        return None
    machine = Roofline(limits["gemm_flops_per_s"], limits["copy_bytes_per_s"], threads=1)
    return machine.floor_ns(counts["flops"], counts["min_bytes"]) / 1e9
