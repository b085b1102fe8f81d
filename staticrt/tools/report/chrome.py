"""Traced calls in Chrome's trace event format (JSON), which Perfetto opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from staticrt.tools.report.runs import Call


def chrome_trace(name: str, calls: Sequence[Call]) -> dict[str, Any]:
    """A trace document: one event per call, run and step; times in µs since the first call began."""
    origin = calls[0].begin_ns if calls else 0
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "staticrt"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": name}},
    ]

    def add(label: str, category: str, begin: int, end: int, **arguments: Any) -> None:
        events.append({
            "ph": "X", "name": label, "cat": category, "pid": 1, "tid": 1,
            "ts": (begin - origin) / 1e3, "dur": max(0, end - begin) / 1e3, "args": arguments,
        })  # fmt: skip

    for number, call in enumerate(calls):
        add(f"{name} #{number}", "call", call.begin_ns, call.end_ns)
        for run in call.runs:
            add(f"{run.path} run", "run", run.begin_ns, run.end_ns, setup_us=run.setup_ns / 1e3)
            for step in run.steps:
                work = step.work
                add(
                    work.op if work.kind not in ("allocate", "view") else work.name,
                    "step",
                    step.begin_ns,
                    step.end_ns,
                    node=work.name,
                    nodes=list(work.nodes),
                    kind=work.kind,
                    route=work.route,
                    line=work.where,
                    module=work.module,
                    shapes=work.shapes,
                    flops=work.flops,
                    bytes=work.read_bytes + work.written_bytes,
                )
        for span in call.eager:
            add(
                f"eager: {span.name}",
                "eager",
                span.begin_ns,
                span.end_ns,
                reason=span.reason,
                line=span.where,
            )
    return {"traceEvents": events, "displayTimeUnit": "ns"}
