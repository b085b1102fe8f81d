"""`compiled.explain()`: what was compiled, what was not, and why."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from staticrt.frontend.graph import TracedGraph
from staticrt.memory import html
from staticrt.memory.units import format_bytes
from staticrt.native import _C
from staticrt.runtime.explain.signatures import SignatureReport, program_text, signature_reports

if TYPE_CHECKING:
    from staticrt.runtime.cached_trace import CachedTrace

_SHOWN_SIGNATURES = 4  # of one graph, in a text


@dataclasses.dataclass(frozen=True)
class TraceReport:
    """One traced graph.

    Args:
        route: "whole", "partial" (between graph breaks), "training" or "loaded".
        inputs: readable kinds of the caller's arguments.
        nodes: number of operator nodes.
        operators: operator name -> count, most frequent first.
        guards: conditions on sizes.
        mutates: names of inputs it writes.
        passes: what each pass changed.
        kinds: the runtime's node kinds (managed, view, fallback …), if it gives them.
        executor: what runs it.
        calls: how often it ran.
        signatures: programs prepared for input signatures: kernels and memory of each.
        program: the graph as the runtime has it, one line per node.
        subgraphs: one line per subgraph that an accelerator compiles.
        state: kind of Python state -> how many pieces of it each call compares.
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
    signatures: tuple[SignatureReport, ...] = ()
    program: str = ""
    subgraphs: tuple[str, ...] = ()
    state: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class EagerReport:
    """Something that runs eagerly.

    Args:
        what: "call" (the whole call), or "graph break".
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
    """What a compiled callable does; `str()` is meant to be read, `details()` lists every node."""

    name: str
    traces: tuple[TraceReport, ...]
    eager: tuple[EagerReport, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self._text(details=False)

    def details(self) -> str:
        """`str()`, and for each graph its program: every node with its kind, kernel and model line."""
        return self._text(details=True)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return dataclasses.asdict(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: graphs, their signatures, what runs eagerly, and the text unfolded by a click."""
        graphs = [
            (number, t.route, t.executor, t.nodes, t.calls, ", ".join(t.inputs))
            for number, t in enumerate(self.traces)
        ]
        signatures = [
            (number, ", ".join(s.inputs), s.arena_bytes, s.lower_bound_bytes, s.output_bytes)
            for number, t in enumerate(self.traces)
            for s in t.signatures
        ]
        eager = [(item.what, item.where, item.reason, item.calls) for item in self.eager]
        parts = [html.title(f"{self.name}: {len(graphs)} traced graph{'s' * (len(graphs) != 1)}")]
        if graphs:
            parts.append(html.table(graphs, ["graph", "route", "executor", "nodes", "calls", "inputs"]))
        if signatures:
            heads = ["graph", "signature", "arena, bytes", "lower bound, bytes", "outputs, bytes a call"]
            parts.append(html.table(signatures, heads))
        if eager:
            parts += [html.title("runs eagerly"), html.table(eager, ["what", "line", "reason", "calls"])]
        parts += [html.lines(self.notes), html.folded("every node", self.details())]
        return "".join(parts)

    def _text(self, details: bool) -> str:
        lines = [f"{self.name}: {len(self.traces)} traced graph{'s' * (len(self.traces) != 1)}"]
        for number, report in enumerate(self.traces):
            lines += _trace_lines(number, report, details)
        if self.eager:
            lines.append("  runs eagerly:")
        for item in self.eager:
            place = f" at {item.where}" if item.where else ""
            lines.append(f"    {item.what}{place}: {item.reason}   ({item.calls} calls)")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def _trace_lines(number: int, report: TraceReport, details: bool) -> list[str]:
    lines = [
        f"  graph {number} ({report.route}, {report.executor}): {report.nodes} nodes, {report.calls} calls",
        f"    inputs:    {', '.join(report.inputs) or 'none'}",
        "    operators: " + ", ".join(f"{name} ×{count}" for name, count in report.operators[:8]),
    ]
    if report.kinds:
        lines.append("    kinds:     " + ", ".join(f"{kind} {count}" for kind, count in report.kinds))
    lines += [f"    guard:     {guard}" for guard in report.guards]
    if report.state:
        lines.append("    state:     " + ", ".join(f"{kind} {count}" for kind, count in report.state))
    if report.mutates:
        lines.append(f"    writes:    {', '.join(report.mutates)}")
    lines += [f"    pass:      {line}" for line in report.passes]
    lines += [f"    subgraph:  {line}" for line in report.subgraphs]
    shown = report.signatures if details else report.signatures[-_SHOWN_SIGNATURES:]
    for signature in shown:
        lines += _signature_lines(signature, details)
    if len(shown) < len(report.signatures):
        lines.append(f"    and {len(report.signatures) - len(shown)} other signatures, which details() lists")
    if details and report.program:
        lines.append("    program:")
        lines += [f"      {line}" for line in report.program.splitlines()]
    return lines


def _signature_lines(signature: SignatureReport, details: bool) -> list[str]:
    lines = [f"    signature: {', '.join(signature.inputs) or 'no tensors'}"]
    lines.append(
        f"      memory:  arena {format_bytes(signature.arena_bytes)} "
        f"(lower bound {format_bytes(signature.lower_bound_bytes)}, without sharing "
        f"{format_bytes(signature.values_bytes)}), outputs {format_bytes(signature.output_bytes)} a call"
        + (f", unmanaged {format_bytes(signature.unmanaged_bytes)}" if signature.unmanaged_bytes else "")
    )
    if any(device != "cpu" for device, _ in signature.arenas):
        lines.append(
            "      arenas:  "
            + ", ".join(f"{device} {format_bytes(size)}" for device, size in signature.arenas)
        )
    if signature.overwrites or signature.parts_in_place:
        lines.append(
            f"      in place: {signature.overwrites} results over an input that dies there, "
            f"{signature.parts_in_place} values made where a later node would copy them"
        )
    if signature.donated_bytes:
        lines.append(
            f"      donated: {format_bytes(signature.donated_bytes)} of values placed in donated arguments, or in results until these are written"
        )
    if signature.parallel_calls:
        lines.append(f"      parallel: {signature.parallel_calls} kernels may run in parallel with another")
    lines.append(f"      calls:   {signature.calls}")
    captures, launches, why_not = signature.graph
    if captures or why_not:
        plain = f"; runs step by step: {why_not}" if why_not else ""
        lines.append(f"      graph:   captured {captures} times, launched {launches} times{plain}")
    lines.append("      kernels: " + ", ".join(f"{route} ×{count}" for route, count in signature.kernels))
    if details:
        lines += [f"        {step}" for step in signature.steps]
    return lines


def trace_report(entry: CachedTrace) -> TraceReport:
    """The report of one trace of an executor."""
    traced = entry.traced
    placeholders = traced.module.graph.find_nodes(op="placeholder")
    users = [(spec, node) for spec, node in zip(traced.inputs, placeholders, strict=True) if spec.changes]
    counts = operator_counts(traced)
    native: _C.Executable | None = getattr(entry.executable, "native", None)
    return TraceReport(
        route="whole",
        inputs=tuple(f"{spec.name}: {describe(node.meta['val'])}" for spec, node in users),
        nodes=sum(count for _name, count in counts),
        operators=counts,
        guards=guard_lines(traced),
        mutates=tuple(spec.name for spec in traced.inputs if spec.mutated),
        passes=getattr(entry.executable, "pass_lines", tuple)(),
        kinds=tuple(getattr(entry.executable, "node_kinds", dict)().items()),
        executor=type(entry.executable).__name__,
        calls=max(entry.calls, _runs(native) if native else 0),  # a replay runs no program
        signatures=signature_reports(native, input_names(traced)) if native else (),
        program=program_text(native) if native else str(traced.module.graph),
        subgraphs=getattr(entry.executable, "accelerator_lines", tuple)(),
        state=tuple(sorted(entry.state.counts.items())),
    )


def input_names(traced: TracedGraph) -> tuple[str, ...]:
    """Names of a program's inputs, "" for the model's own tensors."""
    return tuple(spec.name if spec.changes else "" for spec in traced.inputs)


def guard_lines(traced: TracedGraph) -> tuple[str, ...]:
    """Guards in the caller's terms: "x.shape[1] == 64" for a symbol's name."""
    names = {int(spec.target): spec.name for spec in traced.inputs if spec.kind == "user"}
    places = {}
    for symbol in traced.guards.symbols:
        leaf = names.get(symbol.leaf, f"argument {symbol.leaf}")
        places[symbol.name] = {
            "size": f"{leaf}.shape[{symbol.dim}]", "stride": f"{leaf}.stride({symbol.dim})", "value": leaf
        }[symbol.prop]  # fmt: skip
    return tuple(
        re.sub(r"[A-Za-z_]\w*", lambda match: places.get(match[0], match[0]), guard.expression)
        + (f"   ({guard.reason})" if guard.reason else "")
        for guard in traced.guards.guards
    )


def _runs(executable: _C.Executable) -> int:
    """Calls that ended, those served without Python included."""
    return executable.cache_counters["hits"] + _C.rare_times(executable)["general_runs"]


def describe(value: Any) -> str:
    """A fake value in short: "float32[s0, 8]"."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def operator_counts(traced: TracedGraph) -> tuple[tuple[str, int], ...]:
    """Operator name -> count, most frequent first, then by name."""
    counts = Counter(str(n.target) for n in traced.module.graph.nodes if n.op == "call_function")
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
