"""`staticrt bench --micro`: what one node and one call cost, beside TorchScript's Static Runtime.

Every figure is taken in this process, each peer in blocks that alternate with ours; the best block counts, since
other work on the machine only adds time.
"""

from __future__ import annotations

import gc
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from staticrt import compile
from staticrt.models import zoo
from staticrt.models.bench.gates import MISSED, PASSED
from staticrt.models.bench.measure import allowed_cpus
from staticrt.models.bench.peers.torchscript import STATIC_RUNTIME
from staticrt.models.bench.tables import table
from staticrt.models.bench.threads import threads_set
from staticrt.models.bench.timing import block_timer, calls_per_block

NODES = 100
NEW_SIZES = 50
# model -> which of its named sizes is another one in each call
GROWING = {
    "mlp": "batch",
    "wide_deep": "batch",
    "dlrm_b1": "batch",
    "encoder_tiny": "seq",
    "gpt_prefill": "seq",
    "gpt_decode": "past",
    "lstm_unrolled": "batch",
    "mobilenet_v2": "height",
    "graph_network": "edges",
    "pointwise_norm": "rows",
    "mamba_parallel": "seq",
    "control_flow": "batch",
}
ROUNDS = 15
BLOCK_SECONDS = 0.004


@dataclass(frozen=True)
class Figure:
    """One target and what was measured; `value` is in the target's unit."""

    name: str
    target: str
    value: float
    unit: str
    verdict: str


def _figure(
    name: str, value: float, unit: str, most: float | None = None, least: float | None = None
) -> Figure:
    if most is not None:
        return Figure(name, f"<= {most:g}", value, unit, PASSED if value <= most else MISSED)
    assert least is not None
    return Figure(name, f">= {least:g}", value, unit, PASSED if value >= least else MISSED)


class Chain(nn.Module):
    """`nodes` pointwise operators in a row."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for index in range(self.nodes):
            x = x * y if index % 2 else x + y
        return x


class Unfusable(Chain):
    """The same number of operators, no two neighbours of which can be one loop."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for index in range(self.nodes):
            x = torch.softmax(x, -1) if index % 2 else x + y
        return x


def best_ns(calls: Sequence[Callable[..., Any]], arguments: Sequence[Any]) -> list[float]:
    """Best time of one call of each, in blocks that take turns."""
    timers = [block_timer(call, arguments) for call in calls]
    counts = [calls_per_block(timer, BLOCK_SECONDS) for timer in timers]
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for index, (timer, count) in enumerate(zip(timers, counts, strict=True)):
            best[index] = min(best[index], timer(count).call_ns)
    return best


def _warm(module: nn.Module, arguments: tuple[Tensor, ...], **options: Any) -> Any:
    fast = compile(module.eval(), **options)
    for _ in range(4):
        fast(*arguments)
    return fast


def _nodes() -> list[Figure]:
    figures = []
    for elements, most, least in ((8, 60.0, 5.0), (256, None, 5.0), (1024, None, 1.0), (65_536, None, 1.0)):
        arguments = (torch.rand(elements), torch.rand(elements))
        chain = Chain(NODES)
        own, peer = best_ns([_warm(chain, arguments), STATIC_RUNTIME.prepare(chain, arguments, 1)], arguments)
        if most is not None:
            figures.append(
                _figure(f"pointwise node, chain of {NODES}, N={elements}", own / NODES, "ns", most=most)
            )
        figures.append(_figure(f"  Static Runtime / ours, N={elements}", peer / own, "x", least=least))
    arguments = (torch.rand(8, 8), torch.rand(8, 8))
    apart = Unfusable(NODES)
    own, peer = best_ns([_warm(apart, arguments), STATIC_RUNTIME.prepare(apart, arguments, 1)], arguments)
    figures.append(_figure("node that fuses with none (add, softmax), 8x8", own / NODES, "ns", most=250.0))
    figures.append(_figure("  Static Runtime / ours", peer / own, "x", least=1.0))
    return figures


class Elementwise(nn.Module):
    """One function of every element."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OneRowLstm(nn.Module):
    """An LSTM over a batch of one: each step reads the whole hidden weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "gelu": nn.functional.gelu,
    "gelu, tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu,
    "softplus": nn.functional.softplus,
    "sin": torch.sin,
    "cos": torch.cos,
}


def _mathematics() -> list[Figure]:
    """Functions of 65,536 floats, and a recurrent layer, beside eager."""
    figures = []
    x = torch.rand(65_536) * 4
    for name, function in FUNCTIONS.items():
        module = Elementwise(function)
        own, eager = best_ns([_warm(module, (x,)), module], (x,))
        figures.append(_figure(f"eager / ours, {name} of 65,536", eager / own, "x", least=1.0))
    layer = OneRowLstm(128).eval()
    steps = torch.rand(32, 1, 128)
    own, eager = best_ns([_warm(layer, (steps,)), layer], (steps,))
    figures.append(
        _figure("eager / ours, LSTM of width 128, 32 steps of one row", eager / own, "x", least=1.0)
    )
    return figures


def _calls() -> list[Figure]:
    x, y = torch.rand(8), torch.rand(8)
    module = Chain(1)
    fast = _warm(module, (x, y))
    (native,) = fast.__inspectable__().natives()
    own, peer = best_ns([fast, STATIC_RUNTIME.prepare(module, (x, y), 1)], (x, y))
    inside = min(native.seconds_for([x, y], 20_000) for _ in range(ROUNDS)) / 20_000 * 1e9
    return [
        _figure("call from Python, one node", own / 1e3, "us", most=1.0),
        _figure("call from C++, one node", inside / 1e3, "us", most=0.3),
        _figure("  Static Runtime / ours, from Python", peer / own, "x", least=1.0),
    ]


def _new_sizes() -> list[Figure]:
    """Calls each of which has a size that no call before had, by CPU time: all of them together."""
    figures = []
    for name, size in GROWING.items():
        entry = zoo.get(name)
        module, generator = entry.build(), torch.Generator().manual_seed(0)
        sizes = entry.variants[entry.trace_variant]
        inputs = [entry.feed(generator, {**sizes, size: sizes[size] + more}) for more in range(NEW_SIZES + 2)]
        calls = (module, compile(module))
        seconds = [0.0, 0.0]
        for number, arguments in enumerate(inputs):
            for index, call in enumerate(calls):
                start = time.process_time()
                call(*arguments)
                if number >= 2:  # the first is traced, the second shows which sizes vary
                    seconds[index] += time.process_time() - start
        eager, own = seconds
        figures.append(_figure(f"eager / ours, {NEW_SIZES} new sizes, {name}", eager / own, "x", least=1.0))
    return figures


def _calls_per_second(work: Callable[[], object], calls: int, threads: int) -> float:
    """Of `threads` threads together; `work` makes `calls` calls and is done by each of them."""
    together = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    return threads * calls / (time.perf_counter() - start)


def _threads() -> list[Figure]:
    """Throughput of several threads that run one program, per thread, over that of one alone."""
    count = min(4, len(allowed_cpus()))
    if count < 2:
        return []
    node, arguments = Chain(1), [torch.rand(8), torch.rand(8)]
    (native,) = _warm(node, tuple(arguments)).__inspectable__().natives()
    entry = next(entry for entry in zoo.select(None) if entry.name == "gpt_decode")
    model, inputs = _warm(entry.build(), entry.inputs()), entry.inputs()

    def run_model() -> None:
        with torch.no_grad():
            for _ in range(100):
                model(*inputs)

    figures = []
    for name, work, calls in (
        ("one node, from C++", lambda: native.seconds_for(arguments, 100_000), 100_000),
        ("gpt_decode, from Python", run_model, 100),
    ):
        alone = together = 0.0
        for _ in range(ROUNDS):
            alone = max(alone, _calls_per_second(work, calls, 1))
            together = max(together, _calls_per_second(work, calls, count))
        share = together / alone / count
        figures.append(_figure(f"{count} threads / {count} x one, {name}", share, "x", least=0.9))
    return figures


def _preparation(sizes: Sequence[int]) -> list[Figure]:
    """Time beyond capture, and how it grows with the graph."""
    per_node: dict[int, float] = {}
    capture: dict[int, float] = {}
    first_ms = 0.0
    arguments = (torch.rand(4, 8), torch.rand(4, 8))
    # Keeps the one-time cost of a process's first capture out of the measurement.
    _warm(Unfusable(4), arguments)
    for nodes in sizes:
        gc.collect()
        fast = compile(Unfusable(nodes).eval())
        start = time.perf_counter()
        fast.__inspectable__().prepare(arguments, {})
        captured = time.perf_counter()
        fast(*arguments)
        fast(*arguments)
        done = time.perf_counter()
        capture[nodes] = captured - start
        per_node[nodes] = (done - start) / nodes
        if nodes == 1000:
            first_ms = (done - captured) * 1e3
    figures = [_figure("prepare 1,000 nodes, beyond capture", first_ms, "ms", most=100.0)]
    smallest, largest = min(sizes), max(sizes)
    growth = per_node[largest] / per_node[smallest]
    figures.append(_figure(f"cost per node, {largest:,} nodes / {smallest:,} nodes", growth, "x", most=1.5))
    return figures


def _memory() -> list[Figure]:
    """Arenas as planned, and no system allocation per call, over the zoo."""
    worst, faults = 0.0, 0
    for entry in zoo.select(None):
        arguments = entry.inputs()
        fast = _warm(entry.build(), arguments)
        for native in fast.__inspectable__().natives():
            for stats in native.prepared_stats:
                if stats["lower_bound_bytes"]:
                    worst = max(worst, stats["arena_bytes"] / stats["lower_bound_bytes"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            fast(*arguments)
        faults += (
            entry.tag == zoo.OVERHEAD_BOUND and resource.getrusage(resource.RUSAGE_SELF).ru_minflt > before
        )
    return [
        _figure("largest arena / lower bound over the zoo", worst, "x", most=1.0),
        _figure("overhead-bound models that touch new pages in steady state", float(faults), "", most=0.0),
    ]


def main(quick: bool) -> tuple[list[dict[str, Any]], str]:
    """Every figure: as JSON rows, and as a table."""
    with threads_set(1), torch.inference_mode(False), torch.no_grad():
        figures = [
            *_nodes(),
            *_mathematics(),
            *_calls(),
            *_new_sizes(),
            *_threads(),
            *_preparation((1000, 2000) if quick else (1000, 5000, 20_000)),
            *_memory(),
        ]
    rows = [asdict(figure) for figure in figures]
    body = [(f.name, f"{f.value:.3g} {f.unit}".strip(), f.target, f.verdict) for f in figures]
    return rows, table(body, ("executor", "measured", "target", "verdict"), left=(0, 1, 2, 3))
