"""The rows of `staticrt bench --graphs`, and how their times are measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from staticrt.models.bench.gates import MISSED, PASSED

BLOCKS = 60


@dataclass(frozen=True)
class Row:
    """One measurement, in microseconds unless its name says otherwise; without a target it is for comparison."""

    name: str
    value_us: float
    target_us: float | None = None

    @property
    def bound(self) -> str:
        return "" if self.target_us is None else f"<= {self.target_us:g}"

    @property
    def verdict(self) -> str:
        if self.target_us is None:
            return ""
        return PASSED if self.value_us <= self.target_us else MISSED


def best_us(call: Callable[[], object], calls: int, blocks: int = BLOCKS) -> float:
    """Least time of one call, in microseconds, over blocks of `calls` calls."""
    best = float("inf")
    for _ in range(blocks):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6
