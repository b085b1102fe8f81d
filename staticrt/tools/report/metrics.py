"""`compiled.metrics()`: counts, memory and times of every compiled graph, bodies of control flow included."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from staticrt.native import _C
from staticrt.runtime.explain.inspectable import Graph
from staticrt.runtime.explain.programs import nodes_of
from staticrt.tools.report.profile import KindRow, ProfileReport


@dataclasses.dataclass(frozen=True)
class GraphMetrics:
    """One program. Sizes in bytes, times in ns.

    Args:
        name: "graph 0", or "graph 0, body 1 of cond".
        nodes: number of nodes by binding: total, managed (all outputs planned), out, native (views and numbers), fallback, control.
        kinds: per operator, how many nodes are out variants, native, and fallbacks.
        managed_tensors, managed_bytes, reused_tensors, unmanaged_scalars, unmanaged_others: storage groups of the
            general path, of the frame that ran last.
        managed_outputs, managed_output_bytes: with `manage_outputs`.
        arena_bytes: largest prepared plan: the peak of planned memory.
        lower_bound_bytes: no plan of that program is smaller.
        hits, misses, prepared, evicted, diverged: of input signatures.
        first_iteration_ns: the first run, preparation included; prepare_ns: all preparations.
        general_runs, general_ns: runs on the general path.
        output_dealloc_ns: taking back managed outputs.
        frames: as many as calls ran at once.
    """

    name: str
    nodes: dict[str, int]
    kinds: dict[str, dict[str, int]]
    managed_tensors: int
    managed_bytes: int
    reused_tensors: int
    unmanaged_scalars: int
    unmanaged_others: int
    managed_outputs: int
    managed_output_bytes: int
    arena_bytes: int
    lower_bound_bytes: int
    hits: int
    misses: int
    prepared: int
    evicted: int
    diverged: int
    first_iteration_ns: int
    prepare_ns: int
    general_runs: int
    general_ns: int
    output_dealloc_ns: int
    frames: int


@dataclasses.dataclass(frozen=True)
class TimeMetrics:
    """Times of one steady call in ns, medians of profiled ones.

    Args:
        setup, alloc, dealloc, total: as in `ProfileReport`; total of an untraced call.
        nodes: (node, time) in execution order.
        kinds: time, share and steps of each operator.
    """

    setup: float
    alloc: float
    dealloc: float
    total: float
    nodes: tuple[tuple[str, float], ...]
    kinds: tuple[KindRow, ...]


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The result of `metrics()`. `times` is set only if arguments for a call were given."""

    graphs: tuple[GraphMetrics, ...]
    fast_calls: int
    times: TimeMetrics | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict()` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        headers = [
            "", "nodes", "managed", "native", "fallback", "arena B", "bound B", "hits", "misses", "first ms",
        ]  # fmt: skip
        rows = [
            [g.name, g.nodes["total"], g.nodes["managed"], g.nodes["native"], g.nodes["fallback"], g.arena_bytes,
             g.lower_bound_bytes, g.hits, g.misses, f"{g.first_iteration_ns / 1e6:.2f}"]
            for g in self.graphs
        ]  # fmt: skip
        text = tabulate(rows, headers)
        if self.times is not None:
            t = self.times
            text += (
                f"\n\nsetup {t.setup / 1e3:.2f} µs, memory {t.alloc / 1e3:.2f} µs, release {t.dealloc / 1e3:.2f} µs, "
                f"total {t.total / 1e3:.2f} µs\n"
            )
            text += tabulate(
                [[k.kind, k.count, f"{k.time_ns / 1e3:.2f}", f"{100 * k.share:.1f}"] for k in t.kinds],
                ["operator", "steps", "µs", "%"],
                disable_numparse=True,
            )
        return text


_GROUPS = {"out variant": "out", "boxed out variant": "out", "native": "native", "control flow": "control"}


def graph_metrics(name: str, executable: _C.Executable) -> list[GraphMetrics]:
    """Metrics of one executable, then of its bodies."""
    nodes = nodes_of(executable)
    kinds: dict[str, dict[str, int]] = {}
    for node in nodes:
        group = kinds.setdefault(node.op, {"out": 0, "native": 0, "fallback": 0, "control": 0})
        group[_GROUPS.get(node.kind, "fallback")] += 1
    memory, cache, rare = executable.memory_counters, executable.cache_counters, _C.rare_times(executable)
    stats = [program.stats for program in _C.prepared_programs(executable)]
    largest = max(stats, key=lambda s: s["arena_bytes"], default={"arena_bytes": 0, "lower_bound_bytes": 0})
    outputs, output_bytes = executable.managed_outputs
    own = GraphMetrics(
        name=name,
        nodes=dict(executable.node_counts),
        kinds=dict(sorted(kinds.items())),
        **memory,
        managed_outputs=outputs,
        managed_output_bytes=output_bytes,
        arena_bytes=largest["arena_bytes"],
        lower_bound_bytes=largest["lower_bound_bytes"],
        **cache,
        first_iteration_ns=rare["first_run_ns"],
        prepare_ns=rare["prepare_ns"],
        general_runs=rare["general_runs"],
        general_ns=rare["general_ns"],
        output_dealloc_ns=rare["output_dealloc_ns"],
        frames=executable.num_frames,
    )
    found = [own]
    for node in nodes:
        for number, body in enumerate(node.bodies):
            found += graph_metrics(f"{name}, body {number} of {node.name}", body)
    return found


def metrics_of(compiled: Sequence[Graph], fast_calls: int, profiled: ProfileReport | None) -> Metrics:
    """Metrics of graphs, with the times of a profile if there is one."""
    graphs = tuple(m for graph in compiled for m in graph_metrics(graph.name, graph.native))
    times = None
    if profiled is not None:
        times = TimeMetrics(
            setup=profiled.setup_ns,
            alloc=profiled.alloc_ns,
            dealloc=profiled.dealloc_ns,
            total=profiled.call_ns,
            nodes=tuple((row.name, row.self_ns) for row in profiled.rows),
            kinds=profiled.by_op(),
        )
    return Metrics(graphs, fast_calls, times)
