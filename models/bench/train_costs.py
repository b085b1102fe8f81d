"""`staticrt bench --train`: what a small forward and backward cost, and how long a large region takes to compile.

A cost is the least of several batches, which other work on the machine disturbs least.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from staticrt.models.bench.graph_rows import best_us

TARGET_US = 50.0  # forward and backward of a function of two operators
TARGET_S = 1.0  # cut and plan a joint graph of 2,000 nodes
_CALLS, _BATCHES, _OPERATORS = 200, 15, 500


def _two_operators(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * w)


def _least_us(run: Callable[[], Any], calls: int, batches: int) -> float:
    for _ in range(calls // 4 + 3):
        run()
    return best_us(run, calls, batches)


def measure_two_operators() -> dict[str, float]:
    """Microseconds of a forward and backward of two operators on 64 numbers, each way, Dynamo's guards included."""
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    gradient = torch.ones(8, 8)
    settings: dict[str, dict[str, Any]] = {
        "AOT eager": {"backend": "aot_eager"},
        "AOT node": {"backend": "staticrt", "options": {"backward_node": "aot"}},
        "native node": {"backend": "staticrt", "options": {"backward_node": "native"}},
    }
    found = {}
    for way in ("eager", *settings):
        torch._dynamo.reset()
        run: Callable[..., Any] = _two_operators
        if way in settings:
            run = torch.compile(_two_operators, dynamic=False, **settings[way])

        def step(run: Callable[..., Any] = run) -> None:
            w.grad = None
            run(x, w).backward(gradient)

        found[way] = _least_us(step, _CALLS, _BATCHES)
    return found


def measure_compile() -> dict[str, float]:
    """Seconds to cut and to plan the joint graph of a chain of pointwise operators, and its nodes."""
    from staticrt.training import region_compiler
    from staticrt.training.partition import safe_partition
    from staticrt.training.plans import CompiledGraph

    spent = {"nodes": 0.0, "cut": 0.0, "plan": 0.0}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if name == "cut":
                spent["nodes"] = float(len(arguments[0].graph.nodes))
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                spent[name] += time.perf_counter() - start

        return call

    def chain(x: torch.Tensor) -> torch.Tensor:
        for number in range(_OPERATORS):
            x = x.sin() if number % 2 else x * x
        return x

    torch._dynamo.reset()
    cut = timed("cut", safe_partition)
    plan = timed("plan", CompiledGraph._plan)
    try:
        with (
            mock.patch.object(region_compiler, "safe_partition", cut),
            mock.patch.object(CompiledGraph, "_plan", plan),
        ):
            x = torch.randn(4, requires_grad=True)
            loss = torch.compile(chain, backend="staticrt", dynamic=False)(x).sum()
            loss.backward()  # type: ignore[no-untyped-call]
    finally:
        torch._dynamo.reset()
    return spent


def render_costs(costs: dict[str, Any]) -> str:
    """Both, targets beside values."""
    two, compiled = costs["two_operators_us"], costs["compile_s"]
    cells = "".join(f"  {way} {value:.1f}" for way, value in two.items())
    met = "met" if two["native node"] <= TARGET_US else "missed"
    total = compiled["cut"] + compiled["plan"]
    return (
        f"Forward and backward of two operators, µs:{cells}   (native node: target {TARGET_US:.0f} {met})\n"
        f"Joint graph of {compiled['nodes']:.0f} nodes: cut {compiled['cut']:.2f} s, plans {compiled['plan']:.2f} s"
        f"   (target {TARGET_S:.1f} {'met' if total <= TARGET_S else 'missed'})"
    )
