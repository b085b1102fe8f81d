"""`staticrt bench --train`: training steps of the zoo's models, each way's speed and peak memory beside eager's."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import staticrt
from staticrt.models.bench.gates import EAGER_FLOOR, MISSED, PASSED, Gate, at_least, at_most
from staticrt.models.bench.train import time_in_turns
from staticrt.models.bench.train_memory import allocated_peak
from staticrt.models.zoo import Entry
from staticrt.training import optim

WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "staticrt.compile": staticrt.compile,
    "backend": lambda model: torch.compile(model, backend="staticrt"),
}
INDUCTOR: dict[str, Callable[[nn.Module], Any]] = {"Inductor": torch.compile}
WHOLE = "whole step"
OWN = "staticrt.compile"  # held against eager
PEAK_SHARE = 1.01  # of eager's: what the allocator rounds up
_RTOL = 1e-3  # of the loss


def _loss(out: Any) -> torch.Tensor:
    found = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return torch.stack([t.square().mean() for t in found]).sum()


def _step(run: Any, inputs: tuple[torch.Tensor, ...], optimizer: Any) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        loss = _loss(run(*inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _arena_bytes(step: Any) -> int:
    """Of a whole step, which keeps it between calls."""
    return max((s.arena_bytes for trace in step.explain().traces for s in trace.signatures), default=0)


def _measure(entry: Entry, ways: dict[str, Callable[[nn.Module], Any]], seconds: float) -> dict[str, Any]:
    source, inputs = entry.build().train(), entry.inputs()
    steps: dict[str, Callable[[], torch.Tensor]] = {}
    failed: dict[str, str] = {}
    eager = math.nan
    for way in (*ways, WHOLE):
        model = copy.deepcopy(source)
        try:
            if way == WHOLE:
                step = staticrt.compile_step(_step(model, inputs, optim.SGD(model.parameters(), lr=1e-4)))
            else:
                step = _step(ways[way](model), inputs, torch.optim.SGD(model.parameters(), lr=1e-4))
            torch.manual_seed(0)
            loss = step().item()
            eager = loss if way == "eager" else eager
            if not math.isclose(loss, eager, rel_tol=_RTOL):
                raise AssertionError(f"its loss is {loss:g}, eager's {eager:g}")
        except Exception as error:
            failed[way] = f"{type(error).__name__}: {error}".split("\n")[0]
            if way == "eager":
                break
            continue
        steps[way] = step
    ms = time_in_turns(steps, seconds) if steps else {}
    peaks = {way: allocated_peak(step) for way, step in steps.items()}
    if WHOLE in steps:
        peaks[WHOLE] += _arena_bytes(steps[WHOLE])
    return {"model": entry.name, "ms": ms, "peak_bytes": peaks, "failed": failed}


def measure_zoo(entries: Sequence[Entry], *, seconds: float, inductor: bool = False) -> list[dict[str, Any]]:
    """One row for each model: ms and bytes at the peak of each way's step, and why ways failed.

    Args:
        entries: models of the zoo; put into training mode, at the sizes that the zoo's table has.
        seconds: of timing for each model.
        inductor: also torch.compile's default.

    Returns:
        The rows. "peak_bytes": the most that a step has allocated at one time, a whole step's arena included.
        A model whose eager step fails has a row without times.
    """
    rows = []
    ways = {**WAYS, **INDUCTOR} if inductor else WAYS
    for entry in entries:
        torch._dynamo.reset()
        rows.append(_measure(entry, ways, seconds))
    return rows


def check_zoo(rows: list[dict[str, Any]]) -> list[Gate]:
    """The targets: every way answers as eager does; staticrt.compile is not slower and its peak is not higher."""
    gates = []
    for row in rows:
        failed = "; ".join(row["failed"]) or "none"
        gates.append(
            Gate("ways that fail", row["model"], "none", failed, MISSED if row["failed"] else PASSED)
        )
        is_timed = OWN in row["ms"]
        speed = row["ms"]["eager"] / row["ms"][OWN] if is_timed else None
        peak = row["peak_bytes"][OWN] / row["peak_bytes"]["eager"] if is_timed else None
        gates.append(at_least("speed / eager's", row["model"], EAGER_FLOOR, speed))
        gates.append(at_most("peak memory / eager's", row["model"], PEAK_SHARE, peak))
    return gates


def render_zoo(rows: list[dict[str, Any]]) -> str:
    """The table: speed-up over eager and, in brackets, the peak as a share of eager's; their geometric means."""
    ways = [
        way for way in (*WAYS, *INDUCTOR, WHOLE) if any(way in row["ms"] for row in rows) and way != "eager"
    ]
    lines = [
        "Training step of the zoo: speed-up over eager (peak memory over eager's)",
        "",
        f"{'model':<18}{'eager ms':>12}{'eager MB':>10}" + "".join(f"{way:>20}" for way in ways),
    ]
    for row in rows:
        if "eager" not in row["ms"]:
            lines.append(f"{row['model']:<18}{'failed':>12}")
            continue
        cells = []
        for way in ways:
            if way not in row["ms"]:
                cells.append("failed" if way in row["failed"] else "")
                continue
            peak = row["peak_bytes"][way] / row["peak_bytes"]["eager"]
            cells.append(f"{row['ms']['eager'] / row['ms'][way]:.2f} ({peak:.2f})")
        lines.append(
            f"{row['model']:<18}{row['ms']['eager']:>12.3f}{row['peak_bytes']['eager'] / 1e6:>10.1f}"
            + "".join(f"{cell:>20}" for cell in cells)
        )
    means = []
    for way in ways:
        served = [row for row in rows if way in row["ms"]]
        speed = statistics.geometric_mean([row["ms"]["eager"] / row["ms"][way] for row in served])
        peak = statistics.geometric_mean(
            [row["peak_bytes"][way] / row["peak_bytes"]["eager"] for row in served]
        )
        means.append(f"{speed:.2f} ({peak:.2f})")
    if ways:
        lines.append(f"{'geometric mean':<40}" + "".join(f"{mean:>20}" for mean in means))
    lines += [f"{row['model']}, {way}: {reason}" for row in rows for way, reason in row["failed"].items()]
    return "\n".join(lines)
