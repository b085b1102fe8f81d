"""`staticrt bench --scaling`: how much faster more threads can make each model, computed from how its steps are cut.

Each step states its work as a grid, and one function cuts the grid for a number of threads: so the largest share that one
thread gets is known without running on so many cores. Nothing is timed, so the table is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from staticrt import compile
from staticrt.models import zoo
from staticrt.models.bench.gates import MISSED, PASSED
from staticrt.models.bench.tables import table
from staticrt.models.bench.threads import threads_set
from staticrt.tools.report.runs import Tracer

THREADS = (1, 2, 4, 8, 16, 32, 64)
QUICK_THREADS = (1, 2, 4)
QUICK_MODELS = ("mlp", "encoder_tiny", "mobilenet_v2", "pointwise_norm")
# What a step costs on one thread: the larger of its arithmetic, its traffic, and what its grids state.
FLOPS_PER_NS = 64.0
BYTES_PER_NS = 20.0
FORK_NS = 2000.0  # to start the threads of a step, and to wait for them
LEAST_AT_TWO = 1.5  # of models bound by arithmetic
ASSUMPTIONS = (
    f"Assumed: {FLOPS_PER_NS:g} FLOP and {BYTES_PER_NS:g} bytes a nanosecond on each thread, {FORK_NS:g} ns for a fork. "
    "Bandwidth grows with the threads. Steps that torch's kernels run, and steps without a grid, are serial."
)


@dataclass(frozen=True)
class Scaling:
    """What threads can do for one model on one set of inputs.

    Args:
        bounds: threads -> time on one thread over the least time on so many; below 1 where forks cost more
            than they save.
        forks: number of forks of a call on two threads, or on the most where two were not asked for.
        serial_share: time on one thread of the steps that are never cut, over that of all steps.
        serial_steps: operators of these steps, the longest first.
    """

    bounds: dict[int, float]
    forks: int
    serial_share: float
    serial_steps: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    op: str
    node: str  # of a chain: its last
    cost_ns: float


def _steps(function: Any, inputs: Sequence[Tensor]) -> list[_Step]:
    call = Tracer().call(function, inputs, {})
    steps = []
    for run in call.runs:
        for step in run.steps:
            work = step.work
            moved = work.read_bytes + work.written_bytes
            cost = max(work.flops / FLOPS_PER_NS, moved / BYTES_PER_NS)
            if work.kind in ("allocate", "view"):
                continue  # named like the node whose output it is
            steps.append(_Step(work.op, work.nodes[-1] if work.nodes else work.name, cost))
    return steps


def _shares(function: Any, threads: int) -> dict[str, tuple[float, float, int]]:
    """Per node of a prepared call: what its grids take on one thread, and on so many, in ns; its forks."""
    shares: dict[str, tuple[float, float, int]] = {}
    for native in function.__inspectable__().natives():
        for stats in native.prepared_stats:
            if stats["threads"] == threads:
                for (node, _route), share in zip(stats["routes"], stats["shares"], strict=True):
                    shares[node] = share
    return shares


def scaling_of(module: nn.Module, inputs: Sequence[Tensor], threads: Sequence[int]) -> Scaling:
    """The bound on the speed-up of `module` compiled, for each number of threads.

    Args:
        inputs: inputs of one call. The module is called with them a few times on each number of threads.
        threads: numbers of threads; 1 is added. torch's number is restored afterwards.
    """
    fast = compile(module.eval(), deterministic=True)  # routes by rule, not by measuring
    counts = sorted({1, *threads})
    shares: dict[int, dict[str, tuple[float, float, int]]] = {}
    with threads_set(1), torch.no_grad():
        for count in counts:
            torch.set_num_threads(count)
            for _ in range(3):
                fast(*inputs)
            shares[count] = _shares(fast, count)
        torch.set_num_threads(1)
        steps = _steps(fast, inputs)
    none = (0.0, 0.0, 0)
    costs = [
        max(step.cost_ns, *(shares[count].get(step.node, none)[0] for count in counts)) for step in steps
    ]
    bounds, forks, serial = {}, {}, {}
    for count in counts:
        time_ns, forks[count] = 0.0, 0
        for index, (step, cost) in enumerate(zip(steps, costs, strict=True)):
            whole, largest, forked = shares[count].get(step.node, none)
            time_ns += cost * (largest / whole if whole else 1.0) + forked * FORK_NS
            forks[count] += forked
            if count == counts[-1] and forked == 0 and cost > 0:
                serial[index] = cost
        bounds[count] = sum(costs) / time_ns if time_ns else 1.0
    longest = sorted(serial, key=lambda index: (-serial[index], index))
    return Scaling(
        bounds=bounds,
        forks=forks[2] if 2 in forks else forks[counts[-1]],
        serial_share=sum(serial.values()) / sum(costs) if any(costs) else 1.0,
        serial_steps=tuple(steps[index].op for index in longest),
    )


def main(quick: bool) -> tuple[list[dict[str, Any]], str]:
    """The bounds of the zoo: as JSON rows, and as a table."""
    threads = QUICK_THREADS if quick else THREADS
    rows: list[dict[str, Any]] = []
    for entry in zoo.select(QUICK_MODELS if quick else None):
        found = scaling_of(entry.build(), entry.inputs(), threads)
        is_missed = entry.tag != zoo.OVERHEAD_BOUND and found.bounds[2] < LEAST_AT_TWO
        rows.append({"name": entry.name, **asdict(found), "verdict": MISSED if is_missed else PASSED})
    body = [
        (
            row["name"],
            *(f"{bound:.2f}" for bound in row["bounds"].values()),
            row["forks"],
            f"{row['serial_share']:.0%}",
            ", ".join(dict.fromkeys(row["serial_steps"][:4])),
            row["verdict"],
        )
        for row in rows
    ]
    headers = ("bound on the speed-up", *map(str, threads), "forks", "serial", "serial steps", "verdict")
    return rows, f"{table(body, headers, left=(0, -2, -1))}\n\n{ASSUMPTIONS}"
