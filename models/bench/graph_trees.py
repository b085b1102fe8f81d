"""The rows of `staticrt bench --graphs` about trees: what a captured call costs besides its kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from staticrt.graphs import GraphContext
from staticrt.models.bench.graph_rows import Row, best_us
from staticrt.models.bench.threads import threads_set

ELEMENTS = 8
SHAPES = 1000


def four_outputs(args: list[torch.Tensor]) -> list[torch.Tensor]:
    """Three inputs, four outputs, a few floats each."""
    a, b, c = args
    args.clear()
    return [a + b, b * c, a - c, a.relu()]


def tree_rows(blocks: int) -> list[Row]:
    """A captured call from Python, less the replay of its graph; the first replay; bytes copied; memory of shapes."""
    a, b, c = (torch.randn(ELEMENTS) for _ in range(3))
    with GraphContext("cpu") as context, torch.no_grad():
        wrapped = context.wrap(four_outputs, boxed=True)
        plain = context.wrap(lambda a, b, c: (a + b, b * c, a - c, a.relu()))
        for _ in range(3):
            wrapped([a, b, c])
            plain(a, b, c)
        manager = context.manager
        assert manager is not None
        node = manager.nodes()[0]
        function, replay = node.function, best_us(node.graph.replay, 200, blocks)
        tree = best_us(lambda: context.call(function, [a, b, c]), 200, blocks)
        boxed = best_us(lambda: wrapped([a, b, c]), 200, blocks)
        unboxed = best_us(lambda: plain(a, b, c), 200, blocks)
        copied = context.explain().copied_bytes
    return [
        Row("tree overhead, 3 inputs, 4 outputs", tree - replay, 5.0),
        Row("the same with the choice by sizes and dtypes", boxed - replay),
        Row("the same as an ordinary function", unboxed - replay),
        Row("input bytes copied by all those calls (bytes)", float(copied), 0.0),
        *first_call_rows(blocks),
        *shape_rows(),
    ]


def first_call_rows(blocks: int) -> list[Row]:
    """Call 1 captures; call 2 replays. In multiples of an eager call, by the time this thread computes.

    By the clock, threads of torch that wait for a busy machine would decide: a call happens once only.
    """
    x = torch.randn(256, 256)
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]

    def model(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x).relu()
        return x

    def timed(call: Callable[[], Any]) -> float:
        begin = time.thread_time()
        call()
        return time.thread_time() - begin

    with threads_set(1), torch.no_grad():
        eager = min(timed(lambda: model(x)) * 1e6 for _ in range(max(blocks, 20)))
        first = second = float("inf")
        for _ in range(20):
            with GraphContext("cpu") as context:
                wrapped = context.wrap(model)
                first = min(first, timed(lambda: wrapped(x)) * 1e6)  # noqa: B023
                second = min(second, timed(lambda: wrapped(x)) * 1e6)  # noqa: B023
                assert context.explain().replays == 1
    return [
        Row("call 1, which captures (× eager)", first / eager, 3.0),
        Row("call 2, which replays (× eager)", second / eager),
    ]


def shape_rows() -> list[Row]:
    """A thousand sizes of one function: captures kept, and memory against that of the largest."""
    with torch.no_grad():
        with GraphContext("cpu") as context:
            wrapped = context.wrap(lambda x: (x * 2 + 1).relu())
            for size in range(1, SHAPES + 1):
                wrapped(torch.ones(size, 64))
            report = context.explain()
        with GraphContext("cpu") as context:
            wrapped = context.wrap(lambda x: (x * 2 + 1).relu())
            wrapped(torch.ones(SHAPES, 64))
            alone = context.explain().memory.reserved_bytes
    return [
        Row(f"{SHAPES} shapes: captures kept", float(len(report.nodes)), 16.0),
        Row(f"{SHAPES} shapes: pool (× that of the largest)", report.memory.reserved_bytes / alone, 2.0),
    ]
