"""The project's targets, each beside the value measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from staticrt.models import zoo
from staticrt.models.bench import job as jobs

OWN = "staticrt"
EAGER_FLOOR = 0.97  # of eager's speed, on every model
FIRST_ANSWER_SHARE = 0.1  # of Inductor's time from module to first answer
MANAGED_SHARE = 0.9  # of all nodes over the zoo
NOISE_BYTES = 1 << 20  # smaller differences of resident memory are noise of pages and arenas

PASSED, MISSED, UNKNOWN = "passed", "MISSED", "not measured"

Row = dict[str, Any]


@dataclass(frozen=True)
class Gate:
    """One target of one model: its name, its bound, the measured value (None: not measured) and the verdict."""

    name: str
    model: str
    target: str
    value: float | str | None
    verdict: str


def check(rows: Iterable[Row]) -> list[Gate]:
    """Check all targets that the rows cover, in the order of the targets, then of the models."""
    by_pair = {(row["model"], row["peer"]): row for row in rows}
    models = dict.fromkeys(model for model, _ in by_pair)
    own = {model: by_pair.get((model, OWN)) for model in models}
    tags = {entry.name: entry.tag for entry in zoo.ENTRIES}
    gates: list[Gate] = []
    for model, row in own.items():
        status = None if row is None else row["status"]
        verdict = UNKNOWN if status is None else PASSED if status == jobs.OK else MISSED
        gates.append(Gate("right answer", model, jobs.OK, status, verdict))
    for model, row in own.items():
        if tags.get(model) == zoo.OVERHEAD_BOUND:
            value = _ratio(row, _measured(by_pair, model, "static_runtime"), "speedup")
            gates.append(at_least("speed / TorchScript Static Runtime's", model, 1.0, value, row))
    for model, row in own.items():
        value = row.get("speedup") if row else None
        gates.append(at_least("speed / eager's", model, EAGER_FLOOR, value, row))
    for model, row in own.items():
        value = _ratio(row, _measured(by_pair, model, "inductor"), "first_answer_s")
        gates.append(at_most("first answer / Inductor's", model, FIRST_ANSWER_SHARE, value, row))
    gates += _memory_gates(own)
    gates.append(_managed(by_pair.values()))
    return gates


def _measured(by_pair: dict[tuple[str, str], Row], model: str, peer: str) -> Row | None:
    """The row, if it was measured and its answers are right."""
    row = by_pair.get((model, peer))
    return row if row is not None and row["status"] == jobs.OK else None


def _ratio(own: Row | None, other: Row | None, field: str) -> float | None:
    if own is None or other is None or own.get(field) is None:
        return None
    return float(own[field] / other[field])


def _verdict(value: float | None, is_met: bool, own: Row | None) -> str:
    if own is not None and own["status"] != jobs.OK:
        return MISSED  # a failed or wrong row misses every target
    if value is None:
        return UNKNOWN
    return PASSED if is_met else MISSED


def at_least(name: str, model: str, bound: float, value: float | None, own: Row | None = None) -> Gate:
    verdict = _verdict(value, value is not None and value >= bound, own)
    return Gate(name, model, f">= {bound:g}", value, verdict)


def at_most(name: str, model: str, bound: float, value: float | None, own: Row | None = None) -> Gate:
    verdict = _verdict(value, value is not None and value <= bound, own)
    return Gate(name, model, f"<= {bound:g}", value, verdict)


def _memory_gates(own: dict[str, Row | None]) -> list[Gate]:
    """Steady-state peak above eager's in the same process, in MiB, beyond that of the model where it is least.

    The least is what capturing anything leaves in a process (torch's tracing machinery, not imported before
    its first use); what a model adds to it is its own. One model alone shows no difference.
    """
    above = {
        model: row["steady_peak_bytes"] - row["eager_peak_bytes"]
        for model, row in own.items()
        if row is not None and row.get("steady_peak_bytes") is not None
    }
    machinery = max(0, min(above.values())) if len(above) > 1 else None
    gates = []
    for model, row in own.items():
        is_known = machinery is not None and model in above
        value = (above[model] - (machinery or 0)) / (1 << 20) if is_known else None
        bound = NOISE_BYTES / (1 << 20)
        gates.append(at_most("steady peak memory - eager's, MiB", model, bound, value, row))
    return gates


def _managed(rows: Iterable[Row]) -> Gate:
    """Nodes whose outputs are managed or views, of all nodes of all models."""
    counted = [
        row["facts"]
        for row in rows
        if row["peer"] == OWN and row.get("facts", {}).get("managed_or_view_nodes") is not None
    ]
    nodes = sum(facts["nodes"] for facts in counted)
    held = sum(facts["managed_or_view_nodes"] for facts in counted)
    value = held / nodes if nodes else None
    return at_least("managed or view nodes / all nodes", "all", MANAGED_SHARE, value, None)


def geometric_mean(values: Iterable[float]) -> float | None:
    """The mean for ratios; None of nothing."""
    found = list(values)
    return statistics.geometric_mean(found) if found else None
