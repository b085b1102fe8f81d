"""`compiled.explain()`: what was compiled, what was not, and why."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from staticrt.frontend.graph import CapturedGraph
from staticrt.native import _C
from staticrt.report.drawing import format_bytes
from staticrt.report.graphs import input_names
from staticrt.report.signatures import SignatureReport, program_text, signature_reports

if TYPE_CHECKING:
    from staticrt.entry import Entry

_SHOWN_SIGNATURES = 4  # of one graph, in a text


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
        signatures: programs prepared for input signatures: kernels and memory of each.
        program: the graph as the runtime has it, one line per node.
        islands: parts given to accelerators.
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
    islands: tuple[str, ...] = ()


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
    """What a compiled callable does; `str()` is meant to be read, `details()` lists every node."""

    name: str
    captures: tuple[CaptureReport, ...]
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

    def _text(self, details: bool) -> str:
        lines = [f"{self.name}: {len(self.captures)} captured graph{'s' * (len(self.captures) != 1)}"]
        for number, report in enumerate(self.captures):
            lines += _capture_lines(number, report, details)
        if self.eager:
            lines.append("  runs eagerly:")
        for item in self.eager:
            place = f" at {item.where}" if item.where else ""
            lines.append(f"    {item.what}{place}: {item.reason}   ({item.calls} calls)")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def _capture_lines(number: int, report: CaptureReport, details: bool) -> list[str]:
    lines = [
        f"  graph {number} ({report.route}, {report.executor}): {report.nodes} nodes, {report.calls} calls",
        f"    inputs:    {', '.join(report.inputs) or 'none'}",
        "    operators: " + ", ".join(f"{name} ×{count}" for name, count in report.operators[:8]),
    ]
    if report.kinds:
        lines.append("    kinds:     " + ", ".join(f"{kind} {count}" for kind, count in report.kinds))
    lines += [f"    guard:     {guard}" for guard in report.guards]
    if report.mutates:
        lines.append(f"    writes:    {', '.join(report.mutates)}")
    lines += [f"    pass:      {line}" for line in report.passes]
    lines += [f"    island:    {line}" for line in report.islands]
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
    if signature.overwrites or signature.parts_in_place:
        lines.append(
            f"      in place: {signature.overwrites} results over an input that dies there, "
            f"{signature.parts_in_place} parts of copies made where they would be copied to"
        )
    if signature.donated_bytes:
        lines.append(
            f"      donated: {format_bytes(signature.donated_bytes)} of values in arguments given up"
        )
    if signature.parallel_calls:
        lines.append(f"      beside:  {signature.parallel_calls} kernels may run beside another")
    lines.append("      kernels: " + ", ".join(f"{route} ×{count}" for route, count in signature.kernels))
    if details:
        lines += [f"        {step}" for step in signature.steps]
    return lines


def capture_report(entry: Entry) -> CaptureReport:
    """The report of one capture of an engine."""
    captured = entry.captured
    placeholders = captured.module.graph.find_nodes(op="placeholder")
    users = [(spec, node) for spec, node in zip(captured.inputs, placeholders, strict=True) if spec.changes]
    counts = operator_counts(captured)
    native: _C.Executable | None = getattr(entry.executable, "native", None)
    return CaptureReport(
        route=entry.route,
        inputs=tuple(f"{spec.name}: {describe(node.meta['val'])}" for spec, node in users),
        nodes=sum(count for _name, count in counts),
        operators=counts,
        guards=guard_lines(captured),
        mutates=tuple(spec.name for spec in captured.inputs if spec.mutated),
        passes=getattr(entry.executable, "pass_lines", tuple)(),
        kinds=tuple(getattr(entry.executable, "node_kinds", dict)().items()),
        executor=type(entry.executable).__name__,
        calls=max(entry.calls, _runs(native) if native else 0),  # a replay runs no program
        signatures=signature_reports(native, input_names(captured)) if native else (),
        program=program_text(native) if native else str(captured.module.graph),
        islands=getattr(entry.executable, "island_lines", tuple)(),
    )


def guard_lines(captured: CapturedGraph) -> tuple[str, ...]:
    """Guards in the caller's terms: "x.shape[1] == 64" for a symbol's name."""
    names = {int(spec.target): spec.name for spec in captured.inputs if spec.kind == "user"}
    places = {}
    for symbol in captured.guards.symbols:
        leaf = names.get(symbol.leaf, f"argument {symbol.leaf}")
        places[symbol.name] = {
            "size": f"{leaf}.shape[{symbol.dim}]", "stride": f"{leaf}.stride({symbol.dim})", "value": leaf
        }[symbol.prop]  # fmt: skip
    return tuple(
        re.sub(r"[A-Za-z_]\w*", lambda match: places.get(match[0], match[0]), guard.expression)
        + (f"   ({guard.reason})" if guard.reason else "")
        for guard in captured.guards.guards
    )


def _runs(executable: _C.Executable) -> int:
    """Calls that ended, those served without Python included."""
    return executable.cache_counters["hits"] + _C.rare_times(executable)["general_runs"]


def describe(value: Any) -> str:
    """A fake value in short: "float32[s0, 8]"."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


def operator_counts(captured: CapturedGraph) -> tuple[tuple[str, int], ...]:
    """Operator name -> count, most frequent first, then by name."""
    counts = Counter(str(n.target) for n in captured.module.graph.nodes if n.op == "call_function")
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
