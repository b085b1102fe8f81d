"""Graphs on the device: contexts, trees, compiled modules, and hand-made captures of torch beside them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import staticrt
from staticrt.graphs import GraphContext, close_default_contexts, default_context
from staticrt.graphs.report import GraphReport
from staticrt.models.bench.kit.checks import Skip, check, close, draw_the_same, synchronize


def make(device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Twenty layers on the CPU, and the same on the device."""
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Linear(32, 32), nn.GELU())]
    model = nn.Sequential(*layers).eval()
    return model, copy.deepcopy(model).to(device)


def best_us(call: Callable[[], object], device: torch.device, calls: int = 30) -> float:
    """The best of five rounds, in microseconds for a call, until the device has finished it."""
    times = []
    for _ in range(5):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return min(times) / calls * 1e6


def twelve_calls(run: Callable[[Tensor], Tensor], model: nn.Module, device: torch.device) -> None:
    """Call with two sizes in turn, and check the results after the last call."""
    kept = []
    for number in range(12):
        x = torch.randn(4 + number % 2, 32)
        kept.append((run(x.to(device)), x))
    for y, x in kept:
        close(y, model(x), device)


def replays_of(report: GraphReport) -> int:
    replays = sum(node.replays for node in report.nodes)
    assert replays >= 4, f"{replays} replays of 12 calls; not captured: {report.skips}"
    return replays


@check("graphs", "a context captures and replays")
@torch.no_grad()
def context(device: torch.device) -> str:
    model, there = make(device)
    with GraphContext(device) as ctx:
        run = ctx.wrap(there)
        twelve_calls(run, model, device)
        report = ctx.explain()
        assert report.skips == (), f"not captured: {report.skips}"
        return f"{report.captures} captures, {replays_of(report)} replays"


@check("graphs", "two streams share a context")
@torch.no_grad()
def shared(device: torch.device) -> None:
    model, there = make(device)
    ctx = GraphContext(device)
    run = ctx.wrap(there)
    synchronize(device)
    streams = [torch.Stream(device=device) for _ in range(2)]
    kept = []
    for number in range(30):
        x = torch.randn(4, 32)
        with streams[number % 2]:
            kept.append((run(x.to(device)).clone(), x))
    synchronize(device)
    for y, x in kept:
        close(y, model(x), device)
    ctx.close()


@check("graphs", "compile(graphs=True)")
@torch.no_grad()
def compiled(device: torch.device) -> str:
    model, there = make(device)
    fast = staticrt.compile(there, graphs=True)
    twelve_calls(fast, model, device)
    replays = replays_of(default_context(device).explain())
    close_default_contexts()
    return f"{replays} replays of 12 calls"


@check("graphs", "torch.compile(mode='reduce-overhead') trains")
def reduce_overhead(device: torch.device) -> None:
    model, there = make(device)
    torch._dynamo.reset()
    fast: Callable[[Tensor], Tensor] = torch.compile(
        there.train(), backend="staticrt", mode="reduce-overhead"
    )
    model.train()
    optimizers = [torch.optim.SGD(each.parameters(), 0.05) for each in (model, there)]
    for _ in range(6):
        x = torch.randn(4, 32)
        losses = []
        runs: tuple[Callable[[Tensor], Tensor], ...] = (model, fast)
        for run, given, optimizer in zip(runs, (x, x.to(device)), optimizers, strict=True):
            optimizer.zero_grad()
            loss = run(given).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    close_default_contexts()


@check("graphs", "replays draw eager's random numbers")
@torch.no_grad()
def random_numbers(device: torch.device) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True) + torch.rand_like(x)

    with GraphContext(device) as ctx:
        draw_the_same(function, ctx.wrap(function), torch.ones(1000, device=device))


@check("graphs", "a replay beside a graph captured by hand")
@torch.no_grad()
def by_hand(device: torch.device) -> str:
    if device.type != "cuda":
        raise Skip(f"torch has no graphs of {device.type} that can be captured by hand")
    _model, there = make(device)
    x = torch.randn(4, 32, device=device)
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            there(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there(x)
    theirs_us = best_us(graph.replay, device)
    fast = staticrt.compile(there, graphs=True)
    for _ in range(4):
        fast(x)
    ours_us = best_us(lambda: fast(x), device)
    eager_us = best_us(lambda: there(x), device)
    close_default_contexts()
    return f"ours {ours_us:.1f} µs, by hand {theirs_us:.1f} µs, eager {eager_us:.1f} µs"
