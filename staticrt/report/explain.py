"""`compiled.explain()`: what was compiled, what was not, and why."""

from __future__ import annotations

import dataclasses
from collections import Counter

from staticrt.frontend.graph import CapturedGraph


@dataclasses.dataclass(frozen=True)
class CaptureReport:
    """One captured graph.

    Args:
        route: "whole" or "part" (a piece between graph breaks).
        inputs: readable kinds of the caller's arguments.
        nodes: number of operator nodes.
        operators: operator name -> count, most frequent first.
        guards: conditions on sizes.
        mutates: names of inputs it writes.
        passes: what each pass changed.
        kinds: the runtime's node kinds (managed, view, fallback …), if it gives them.
        executor: what runs it.
        calls: how often it ran.
    """

    route: str
    inputs: tuple[str, ...]
    nodes: int
    operators: tuple[tuple[str, int], ...]
    guards: tuple[str, ...]
    mutates: tuple[str, ...]
    passes: tuple[str, ...]
    kinds: tuple[tuple[str, int], ...]
    executor: str
    calls: int


@dataclasses.dataclass(frozen=True)
class EagerReport:
    """Something that runs eagerly.

    Args:
        what: "call" (the whole call), or "between parts" (a graph break).
        reason: why.
        where: the model line, "" where not known.
        calls: how many calls it concerned.
    """

    what: str
    reason: str
    where: str
    calls: int


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a compiled callable does; `str()` is meant to be read."""

    name: str
    captures: tuple[CaptureReport, ...]
    eager: tuple[EagerReport, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.captures)} captured graph{'s' * (len(self.captures) != 1)}"]
        for number, report in enumerate(self.captures):
            lines.append(
                f"  graph {number} ({report.route}, {report.executor}): {report.nodes} nodes, {report.calls} calls"
            )
            lines.append(f"    inputs:    {', '.join(report.inputs) or 'none'}")
            lines.append(
                "    operators: " + ", ".join(f"{name} ×{count}" for name, count in report.operators[:8])
            )
            if report.kinds:
                lines.append("    kinds:     " + ", ".join(f"{kind} {count}" for kind, count in report.kinds))
            lines += [f"    guard:     {guard}" for guard in report.guards]
            if report.mutates:
                lines.append(f"    writes:    {', '.join(report.mutates)}")
            lines += [f"    pass:      {line}" for line in report.passes]
        if self.eager:
            lines.append("  runs eagerly:")
        for item in self.eager:
            place = f" at {item.where}" if item.where else ""
            lines.append(f"    {item.what}{place}: {item.reason}   ({item.calls} calls)")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def operator_counts(captured: CapturedGraph) -> tuple[tuple[str, int], ...]:
    """Operator name -> count, most frequent first, then by name."""
    counts = Counter(str(n.target) for n in captured.module.graph.nodes if n.op == "call_function")
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
