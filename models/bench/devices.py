"""`staticrt bench --devices`: the zoo with its tensors on each accelerator of this process, the simulated one among them.

On the simulated device a call returns once its operators are enqueued, since kernels run when the host waits. So the times
there are those of the host; the times of kernels mean nothing and are not reported.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from staticrt import compile, memory
from staticrt.memory.simulated_device import SimulatedDevice
from staticrt.models import zoo
from staticrt.models.bench.check import difference, leaves
from staticrt.models.bench.gates import MISSED, PASSED
from staticrt.models.bench.processes import in_process
from staticrt.models.bench.progress import Progress
from staticrt.models.bench.tables import table

QUICK_MODELS = ("mlp", "encoder_tiny", "graph_network")
MOST_SUBMISSION_US = 1.0  # of a node on the simulated device, median
MOST_ARENA = 1.0  # of the planner's lower bound
ROUNDS = 30
_WARM_UP = 3  # the first call traces, the second records sizes, the third is prepared


@dataclass(frozen=True)
class DeviceRow:
    """One zoo model on one device.

    Args:
        nodes: of the traced graph.
        difference: "" where the answer is eager's on the same device, else how it differs.
        eager_us, ours_us: median time in microseconds until a call returns (sim), or until the device has finished it.
        graphs_us, plan_graphs_us: the same, compiled with `graphs=True` and `plan_graphs=True`.
        launches, plan_graphs_launches: kernels and graphs that a call of `ours_us` and of `plan_graphs_us` gives the
            driver; -1: only sim counts them.
        node_us: `ours_us` over `nodes`.
        arena_bytes, lower_bound_bytes: memory of managed values, and the least that any plan takes.
        waits: what made the host wait for the device in a steady call, and how often. Waits of the model's own
            (sizes that data decides) count as well.
        eagerly: what runs eagerly, as `explain()` says.
    """

    device: str
    name: str
    nodes: int
    difference: str
    eager_us: float
    ours_us: float
    graphs_us: float
    plan_graphs_us: float
    launches: int
    plan_graphs_launches: int
    arena_bytes: int
    lower_bound_bytes: int
    waits: dict[str, int]
    eagerly: tuple[str, ...]

    @property
    def node_us(self) -> float:
        return self.ours_us / max(self.nodes, 1)

    @property
    def verdict(self) -> str:
        """`MISSED` for a wrong answer, a larger arena than the bound, a hidden wait or a late return of the plain way."""
        is_late = self.device.startswith("sim") and self.node_us > MOST_SUBMISSION_US
        is_large = self.arena_bytes > MOST_ARENA * self.lower_bound_bytes
        return MISSED if self.difference or is_large or is_late or self.waits else PASSED


def _moved(value: Any, device: str) -> Any:
    return pytree.tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, value)


@contextmanager
def _waits_counted(device: str, counts: dict[str, int]) -> Iterator[None]:
    """Count what makes the host wait for the device inside of the block."""
    kind = torch.device(device).type
    if kind == "sim":
        memory.simulated.clear_waits(device)
        yield
        counts.update(memory.simulated.waits(device))
    elif kind == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for warning in caught:
            if "synchroniz" in str(warning.message):
                where = f"{warning.filename.rsplit('/', 1)[-1]}:{warning.lineno}"
                counts[where] = counts.get(where, 0) + 1
    else:
        yield


def _launches(call: Callable[[], object], device: str) -> int:
    """Kernels and graphs that a call gives the driver; -1: they are not counted."""
    if not device.startswith("sim"):
        return -1
    sim = memory.device(device)
    assert isinstance(sim, SimulatedDevice)

    def so_far() -> int:
        return sim.calls("launch") + sim.calls("graph_launch")

    before = so_far()
    call()
    return so_far() - before


def _median_us(call: Callable[[], object], finish: Callable[[], object], timed_to_end: bool) -> float:
    times = []
    for _ in range(ROUNDS):
        finish()
        begin = time.perf_counter()
        call()
        if timed_to_end:
            finish()
        times.append(time.perf_counter() - begin)
    finish()
    return sorted(times)[len(times) // 2] * 1e6


@torch.no_grad()
def measure(name: str, device: str) -> DeviceRow:
    """One row: model `name` of the zoo on `device`, "sim:0" or "cuda:0". The simulated device must be enabled."""
    entry = zoo.select((name,))[0]
    module = copy.deepcopy(entry.build()).to(device)
    inputs = _moved(entry.inputs(), device)
    fast = compile(module)
    by_trees = compile(copy.deepcopy(module), graphs=True)
    by_plans = compile(copy.deepcopy(module), plan_graphs=True)

    def finish() -> None:
        torch.accelerator.synchronize(torch.device(device).index or 0)

    expected = _moved(leaves(module(*inputs)), "cpu")
    differs = ""
    for run in (fast, by_trees, by_plans):
        for _ in range(_WARM_UP):
            got = _moved(leaves(run(*inputs)), "cpu")
        differs = differs or difference(got, expected, rtol=entry.rtol, atol=entry.atol).reason or ""
    waits: dict[str, int] = {}
    finish()
    with _waits_counted(device, waits):
        fast(*inputs)
    launches = _launches(partial(fast, *inputs), device)
    plan_graphs_launches = _launches(partial(by_plans, *inputs), device)
    to_end = not device.startswith("sim")
    eager_us, ours_us, graphs_us, plan_graphs_us = (
        _median_us(partial(run, *inputs), finish, to_end) for run in (module, fast, by_trees, by_plans)
    )
    report = fast.explain()
    signatures = [signature for trace in report.traces for signature in trace.signatures]
    return DeviceRow(
        device=device,
        name=name,
        nodes=sum(trace.nodes for trace in report.traces),
        difference=differs,
        eager_us=eager_us,
        ours_us=ours_us,
        graphs_us=graphs_us,
        plan_graphs_us=plan_graphs_us,
        launches=launches,
        plan_graphs_launches=plan_graphs_launches,
        arena_bytes=sum(signature.arena_bytes for signature in signatures),
        lower_bound_bytes=sum(signature.lower_bound_bytes for signature in signatures),
        waits=waits,
        eagerly=tuple(str(part) for part in report.eager),
    )


def available() -> list[str]:
    """The devices that this machine can try."""
    return ["sim:0", *(["cuda:0"] if torch.cuda.is_available() else [])]


def main(quick: bool) -> tuple[list[dict[str, Any]], str]:
    """The zoo on every device, each model in a process of its own: as JSON rows, and as a table."""
    rows: list[dict[str, Any]] = []
    entries, devices = zoo.select(QUICK_MODELS if quick else None), available()
    progress = Progress(len(devices) * len(entries))
    for device in devices:
        for entry in entries:
            progress.show(f"{entry.name} on {device}")
            found = in_process(__name__, entry.name, device)
            if isinstance(found, str):
                rows.append({"device": device, "name": entry.name, "failed": found, "verdict": MISSED})
            else:
                row = DeviceRow(**found)
                rows.append({**found, "node_us": row.node_us, "verdict": row.verdict})
            progress.say(f"{entry.name} on {device}: {rows[-1]['verdict']}")
            progress.advance()
    progress.finish()
    return rows, render(rows)


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `main` as a table."""
    body = []
    for row in rows:
        if "failed" in row:
            body.append((row["device"], row["name"], *[""] * 11, f"failed: {row['failed']}", row["verdict"]))
            continue
        body.append(
            (
                row["device"],
                row["name"],
                row["nodes"],
                *(f"{row[key]:,.0f}" for key in ("eager_us", "ours_us", "graphs_us", "plan_graphs_us")),
                f"{row['eager_us'] / row['ours_us']:.2f}",
                f"{row['node_us']:.2f}",
                *("" if row[key] < 0 else str(row[key]) for key in ("launches", "plan_graphs_launches")),
                f"{row['arena_bytes'] / 1024:,.0f}",
                f"{row['lower_bound_bytes'] / 1024:,.0f}",
                row["difference"]
                or ", ".join(f"{why}: {count}" for why, count in row["waits"].items())
                or ("runs eagerly: " + "; ".join(row["eagerly"]) if row["eagerly"] else ""),
                row["verdict"],
            )
        )
    headers = ["device", "model", "nodes", "eager µs", "ours µs", "graphs µs", "plan µs", "ratio"]
    headers += ["µs a node", "launches", "plan's", "arena KiB", "bound KiB", "differs, waits", "verdict"]
    rendered = table(body, headers, left=(0, 1, -2, -1))
    return (
        f"{rendered}\n\nOn sim: time until a call has enqueued its work; graphs: `graphs=True`, plan: `plan_graphs=True`. "
        "Targets: eager's answers, arenas of the planner's "
        f"lower bound, no hidden wait, and on sim at most {MOST_SUBMISSION_US:g} µs a node."
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2].startswith("sim"):
        memory.simulated.enable(checks=False)
    print(json.dumps(asdict(measure(*sys.argv[1:]))))
