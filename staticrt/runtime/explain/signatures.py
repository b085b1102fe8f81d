"""Prepared signatures of an executable, for `explain()`: kernels chosen, steps, memory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from staticrt.native import _C
from staticrt.ops.work import short_name
from staticrt.runtime.explain.programs import PreparedView, Work, nodes_of


@dataclasses.dataclass(frozen=True)
class SignatureReport:
    """One prepared program.

    Args:
        inputs: the caller's tensors it is for, "x: float32[8, 64]"; the model's own are left out.
        threads: intra-op threads it is for.
        calls: calls that ran it. The first call of a signature prepares it and is not counted.
        arenas: device -> planned bytes there.
        arena_bytes: planned memory of all devices; lower_bound_bytes: no plan is smaller; values_bytes: without sharing.
        output_bytes, unmanaged_bytes: allocated in each call: results; what kernels of others allocate.
        overwrites: results written over an input that dies there; parts_in_place: values made where a later node
            would have copied them.
        donated_bytes: values and results that lie in bytes which the caller gave up.
        parallel_calls: kernels that may run beside another.
        graph: with `plan_graphs`, captures and launches of driver graphs, and why the last call was none.
        kernels: kernel or route -> number of steps, most frequent first.
        steps: readable lines, in order.
    """

    inputs: tuple[str, ...]
    threads: int
    calls: int
    arenas: tuple[tuple[str, int], ...]
    arena_bytes: int
    lower_bound_bytes: int
    values_bytes: int
    output_bytes: int
    unmanaged_bytes: int
    overwrites: int
    parts_in_place: int
    donated_bytes: int
    parallel_calls: int
    graph: tuple[int, int, str]
    kernels: tuple[tuple[str, int], ...]
    steps: tuple[str, ...]


def signature_reports(executable: _C.Executable, names: Sequence[str]) -> tuple[SignatureReport, ...]:
    """The prepared programs of an executable, least recently used first.

    Args:
        names: the program's inputs, "" for the model's own tensors.
    """
    return tuple(_report(executable, p, names) for p in _C.prepared_programs(executable))


def _report(executable: _C.Executable, prepared: _C.PreparedProgram, names: Sequence[str]) -> SignatureReport:
    view = PreparedView(executable, prepared)
    sizes: Counter[str] = Counter()
    for kind, _id, _begin, _end, size, *_where in prepared.blocks:
        sizes[kind] += size
    kernels = Counter(step.route or step.kind for step in view.steps)
    inputs = tuple(
        f"{name}: {value.shape}"
        for name, value in zip(names, view.inputs, strict=False)
        if name and value.shape is not None
    )
    return SignatureReport(
        inputs=inputs,
        threads=view.num_threads,
        calls=executable.plan_calls(prepared),
        arenas=tuple(prepared.arenas),
        arena_bytes=view.stats["arena_bytes"],
        lower_bound_bytes=view.stats["lower_bound_bytes"],
        values_bytes=sizes["arena"] + sizes["workspace"],
        output_bytes=sizes["output"],
        unmanaged_bytes=sizes["unmanaged"],
        overwrites=view.stats["overwrites"],
        parts_in_place=view.stats["parts_in_place"],
        donated_bytes=sizes["donated"],
        parallel_calls=view.stats["parallel_calls"],
        graph=prepared.graphs,
        kernels=tuple(sorted(kernels.items(), key=lambda item: (-item[1], item[0]))),
        steps=tuple(map(_step_line, view.steps)),
    )


def _step_line(step: Work) -> str:
    route = f" [{step.route}]" if step.route else ""
    line = f"   ({step.where})" if step.where else ""
    name = step.name if step.kind in ("allocate", "view") else f"{step.name} = {step.op}"
    return f"{name}: {step.kind}{route} {step.shapes}{line}"


def program_text(executable: _C.Executable) -> str:
    """One line per node: name, operator, binding, model line."""
    lines = []
    for node in nodes_of(executable):
        place = f"   ({node.where})" if node.where else ""
        lines.append(f"{node.name} = {short_name(node.op)}   {node.kind}{place}")
    return "\n".join(lines)
