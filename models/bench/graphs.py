"""`staticrt bench --graphs`: what a replayed graph costs on the CPU, beside its targets.

Each row is the least of many short blocks, so that other work on the machine raises it little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

import staticrt
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.models.bench import graph_trees
from staticrt.models.bench.graph_rows import BLOCKS, Row, best_us
from staticrt.models.bench.tables import table
from staticrt.native import _C

OPERATORS = 20
ELEMENTS = 8


def chain(x: torch.Tensor) -> torch.Tensor:
    """20 operators on a few floats, none of which can become a view or a constant."""
    for _ in range(OPERATORS // 2):
        x = torch.relu(torch.add(x, x))
    return x


def replay_rows(blocks: int = BLOCKS) -> list[Row]:
    """Cost per operator of a replayed graph; the call from Python and the rebinding of its input are in it."""
    x = torch.ones(ELEMENTS)

    def per_operator(call: Callable[[], object]) -> float:
        return best_us(call, 100, blocks) / OPERATORS

    def replay_of(function: Callable[..., Any], own_kernels: bool) -> float:
        graph = _C.CpuGraph(CpuGraphPool().native, own_kernels)
        graph.begin([x])
        kept = function(x)
        failure = graph.end()
        assert not failure, failure
        replay, inputs = graph.replay, [x]
        value = per_operator(lambda: replay(inputs))
        del kept
        return value

    with torch.no_grad():
        compiled = staticrt.compile(chain)
        for _ in range(3):
            compiled(x)
        return [
            Row("eager, per operator", per_operator(lambda: chain(x))),
            Row("replay, boxed, per operator", replay_of(chain, own_kernels=False), 0.25),
            Row("replay, prepared, per operator", replay_of(chain, own_kernels=True), 0.12),
            Row("replay of a compiled function, per operator", replay_of(compiled, own_kernels=True), 0.12),
        ]


def primitive_rows(blocks: int = BLOCKS) -> list[Row]:
    """Storage primitives that a tree calls for inputs and outputs, called from Python."""
    x = torch.ones(ELEMENTS)
    ref, spec = _C.storage_ref(x), _C.TensorSpec.of(x)
    ptrs = [x.data_ptr()]
    return [
        Row("use_count", best_us(ref.use_count, 1000, blocks)),
        Row("ptrs_equal, one input", best_us(lambda: _C.ptrs_equal([x], ptrs, [0]), 1000, blocks)),
        Row("tensor_at", best_us(lambda: _C.tensor_at(spec), 1000, blocks)),
    ]


# What is measured, in the order printed.
GROUPS: list[Callable[[int], list[Row]]] = [replay_rows, primitive_rows, graph_trees.tree_rows]


def main(quick: bool) -> tuple[list[dict[str, Any]], str]:
    """Every row as a dictionary, and the table."""
    rows = [row for group in GROUPS for row in group(BLOCKS // 6 if quick else BLOCKS)]
    body = [(row.name, f"{row.value_us:.3f}", row.bound, row.verdict) for row in rows]
    rendered = table(body, ["graphs on the CPU", "µs", "target", ""], left=(0, 2, 3))
    return [{**asdict(row), "verdict": row.verdict} for row in rows], rendered
