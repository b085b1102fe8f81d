"""`staticrt bench --graphs`: what a replayed graph costs on the CPU, beside the design's targets.

Each row is the least of many short blocks, so that other work on the machine raises it little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from tabulate import tabulate

from staticrt.capture.cpu_pool import CpuGraphPool
from staticrt.native import _C

OPERATORS = 20
ELEMENTS = 8
BLOCKS = 40


class Row(NamedTuple):
    """One measurement, in microseconds; `target` None: no target, printed for comparison."""

    name: str
    value_us: float
    target_us: float | None


def best_us(call: Callable[[], object], calls: int) -> float:
    """Least time of one call, in microseconds, over blocks of `calls` calls."""
    best = float("inf")
    for _ in range(BLOCKS):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


def chain(x: torch.Tensor) -> torch.Tensor:
    """20 operators on 8 floats; every second one has an out variant that no kernel of ours replaces bitwise."""
    for _ in range(OPERATORS // 2):
        x = torch.relu(torch.add(x, x))
    return x


def captured(own_kernels: bool) -> tuple[_C.CpuGraph, torch.Tensor, torch.Tensor]:
    """The chain as a graph; with kernels of ours, or with torch's out variants called boxed."""
    x = torch.ones(ELEMENTS)
    graph = _C.CpuGraph(CpuGraphPool().native, own_kernels)
    graph.begin([x])
    y = chain(x)
    failure = graph.end()
    assert not failure, failure
    return graph, x, y


def replay_rows() -> list[Row]:
    """Cost of one operator of a replayed graph; the call from Python and the rebinding are in it."""
    x = torch.ones(ELEMENTS)
    with torch.no_grad():
        rows = [Row("eager, per operator", best_us(lambda: chain(x), 50) / OPERATORS, None)]
        for own_kernels, name, target in ((False, "boxed", 0.25), (True, "prepared", 0.12)):
            graph, x, _y = captured(own_kernels)
            inputs = [x]
            replay = graph.replay

            def call(replay: Callable[..., object] = replay, inputs: list[torch.Tensor] = inputs) -> None:
                replay(inputs)

            rows.append(Row(f"replay {name}, per operator", best_us(call, 200) / OPERATORS, target))
    return rows


def primitive_rows() -> list[Row]:
    """The storage primitives that a tree calls for each input and output."""
    x = torch.ones(ELEMENTS)
    ref, spec = _C.storage_ref(x), _C.TensorSpec.of(x)
    ptrs = [x.data_ptr()]
    return [
        Row("use_count", best_us(ref.use_count, 2000), None),
        Row("ptrs_equal, one input", best_us(lambda: _C.ptrs_equal([x], ptrs, [0]), 1000), None),
        Row("tensor_at", best_us(lambda: _C.tensor_at(spec), 1000), None),
    ]


def render(rows: list[Row]) -> str:
    """A table of rows."""
    lines = [
        [
            row.name,
            f"{row.value_us:.3f}",
            "" if row.target_us is None else f"{row.target_us:.2f}",
            "" if row.target_us is None else ("met" if row.value_us <= row.target_us else "missed"),
        ]
        for row in rows
    ]
    return tabulate(lines, headers=["graphs on the CPU", "µs", "target", ""], disable_numparse=True)


def all_rows() -> list[Row]:
    """Every row, in the order printed."""
    return [*replay_rows(), *primitive_rows()]
