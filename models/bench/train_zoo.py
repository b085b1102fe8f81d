"""`staticrt bench --train`: training steps of the zoo's models, each way's speed and peak memory beside eager's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import staticrt
from staticrt.models.bench.gates import EAGER_FLOOR, MISSED, PASSED, Gate, at_least, at_most
from staticrt.models.bench.tables import table
from staticrt.models.bench.train import WHOLE, measure_steps
from staticrt.models.bench.train_memory import planned_bytes
from staticrt.models.zoo import Entry

WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "staticrt.compile": staticrt.compile,
    "backend": lambda model: torch.compile(model, backend="staticrt"),
}
INDUCTOR: dict[str, Callable[[nn.Module], Any]] = {"Inductor": torch.compile}
OWN = "staticrt.compile"  # held against eager
PEAK_SHARE = 1.01  # of eager's: what the allocator rounds up
_CELL = "{:.2f} ({:.2f})"


def _loss(out: Any) -> torch.Tensor:
    found = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return torch.stack([t.square().mean() for t in found]).sum()


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
        steps, row = measure_steps(entry.build().train(), entry.inputs(), ways, seconds, _loss, rate=1e-4)
        if WHOLE in steps:
            row["peak_bytes"][WHOLE] += planned_bytes(steps[WHOLE])["arena"]  # kept between calls
        rows.append({"model": entry.name, **row})
    return rows


def _gains(row: dict[str, Any], way: str) -> tuple[float, float]:
    """A way's speed over eager's, and its peak memory over eager's."""
    peaks = row["peak_bytes"]
    return row["ms"]["eager"] / row["ms"][way], peaks[way] / peaks["eager"]


def check_zoo(rows: list[dict[str, Any]]) -> list[Gate]:
    """The targets: every way answers as eager does; staticrt.compile is not slower and its peak is not higher."""
    gates = []
    for row in rows:
        name, failed = row["model"], "; ".join(row["failed"])
        gates.append(Gate("ways that fail", name, "none", failed or "none", MISSED if failed else PASSED))
        speed, peak = _gains(row, OWN) if OWN in row["ms"] else (None, None)
        gates.append(at_least("speed / eager's", name, EAGER_FLOOR, speed))
        gates.append(at_most("peak memory / eager's", name, PEAK_SHARE, peak))
    return gates


def render_zoo(rows: list[dict[str, Any]]) -> str:
    """The table: speed-up over eager and, in brackets, the peak as a share of eager's; their geometric means."""
    done = [row for row in rows if row["ms"]]
    ways = [way for way in (*WAYS, *INDUCTOR, WHOLE) if way != "eager" and any(way in r["ms"] for r in done)]
    body = []
    for row in rows:
        cells = ["failed" if way in row["failed"] else "" for way in ways]
        for index, way in enumerate(ways):
            if way in row["ms"]:
                cells[index] = _CELL.format(*_gains(row, way))
        ms, peaks = row["ms"], row["peak_bytes"]
        eager = [f"{ms['eager']:.3f}", f"{peaks['eager'] / 1e6:.1f}"] if ms else ["failed", ""]
        body.append([row["model"], *eager, *cells])
    if ways:
        gains = [zip(*(_gains(row, way) for row in done if way in row["ms"]), strict=True) for way in ways]
        means = (_CELL.format(*map(statistics.geometric_mean, of_way)) for of_way in gains)
        body.append(["geometric mean", "", "", *means])
    problems = [f"{row['model']}, {way}: {why}" for row in rows for way, why in row["failed"].items()]
    title = "Training step of the zoo: speed-up over eager (peak memory over eager's)"
    return "\n".join([title, table(body, ["model", "eager ms", "eager MB", *ways]), *problems])
