"""`explain()` of an engine: its captures, what it runs eagerly, its pieces and graphs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from staticrt.executable import ReferenceExecutable
from staticrt.report.explain import EagerReport, Explanation, capture_report

if TYPE_CHECKING:
    from staticrt.compiled import Engine


def explanation(engine: Engine) -> Explanation:
    """What was compiled, what runs eagerly, and why."""
    pieces = engine.pieces
    captures = [capture_report(entry) for entry in engine._order]
    captures += [region.report() for region in pieces.regions]
    captures += [
        dataclasses.replace(capture_report(entry), route="part")
        for piece in pieces.engines
        for entry in piece._order
    ]
    eager = [EagerReport(*key, calls=count) for key, count in sorted(engine._eager.items()) if count]
    eager += [item for region in pieces.regions for item in region.eager_reports()]
    eager += [EagerReport("between parts", reason, where, 0) for reason, where in pieces.breaks]
    eager += [item for piece in pieces.engines for item in explanation(piece).eager]
    notes = [
        f"not captured whole: {failure.reason}" + (f" at {failure.where}" if failure.where else "")
        for failure in dict.fromkeys(engine._failures.values())
    ]
    notes += [
        f"graph {number} runs operator by operator, outside the runtime: {entry.executable.reason}"
        for number, entry in enumerate(engine._order)
        if isinstance(entry.executable, ReferenceExecutable) and entry.executable.reason
    ]
    notes += _weight_notes(engine)
    return Explanation(engine.name, tuple(captures), tuple(eager), (*notes, *_graph_notes(engine)))


def _weight_notes(engine: Engine) -> list[str]:
    """Inference tensors among the weights: no version counter tells of writes to them."""
    if engine.options.freeze is not None:
        return []
    entries = [entry for each in (engine, *engine.pieces.engines) for entry in each._order]
    uncounted = {
        id(value)
        for entry in entries
        for spec, value in entry.own_tensors()
        if not spec.mutated and value.is_inference()
    }
    if not uncounted:
        return []
    return [
        f"{len(uncounted)} weights were made inside torch.inference_mode(), where writes are not counted: what is "
        "made of them (packed, folded weights) is checked against all their bytes in every call, or not kept "
        "where that would cost more. Calls are slower for it; build or load the model outside of it (calls may "
        "be inside), or say freeze=True if they never change"
    ]


def _graph_notes(engine: Engine) -> list[str]:
    """What graph capture did, for each tree that programs of this callable run in."""
    if engine.options.graphs is False:
        return []
    from staticrt.capture.compiled import reports

    engines = [engine, *engine.pieces.engines]
    runs = [entry.executable.captured for each in engines for entry in each._order]  # type: ignore[attr-defined]
    runs += [run for region in engine.pieces.regions for run in region.captured_runs()]
    return [str(report) for report in reports(runs)]
