"""A runtime program as reports see it: nodes, steps and shapes, in plain Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from staticrt.native import _C
from staticrt.ops.work import Shape, flops, moved_bytes, short_name


@dataclasses.dataclass(frozen=True)
class Node:
    """One node of a program.

    Args:
        name: the graph node's name.
        op: "aten::add.Tensor".
        where: the model line, or "".
        module: the path of the layer, "layers.0.norm", or "".
        kind: how it is bound: "out variant", "boxed out variant", "native", "fallback", "control flow".
        args: per argument, the values it reads.
        constants: arguments that are numbers, by position.
        outputs: the values it makes.
        bodies: executables of control flow.
    """

    name: str
    op: str
    where: str
    module: str
    kind: str
    args: tuple[tuple[int, ...], ...]
    constants: dict[int, Any]
    outputs: range
    bodies: tuple[_C.Executable, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        return tuple(value for argument in self.args for value in argument)


def nodes_of(executable: _C.Executable) -> tuple[Node, ...]:
    """The nodes of an executable's program, in order."""
    return tuple(
        Node(
            name=raw["name"],
            op=raw["op"],
            where=raw["where"],
            module=raw["module"],
            kind=raw["kind"],
            args=tuple(map(tuple, raw["args"])),
            constants=raw["constants"],
            outputs=range(raw["first_output"], raw["first_output"] + raw["num_outputs"]),
            bodies=tuple(raw["bodies"]),
        )
        for raw in _C.program_nodes(executable)
    )


@dataclasses.dataclass(frozen=True)
class Value:
    """One value of a prepared program.

    Args:
        shape: None if it is not a tensor.
        stable: its shape is the same in every call of the signature.
        owner: the value whose bytes it has.
        place: "input", "constant" or "node".
    """

    name: str
    shape: Shape | None
    stable: bool
    owner: int
    place: str


def values_of(prepared: _C.PreparedProgram) -> tuple[Value, ...]:
    """All values of a prepared program, by number."""
    return tuple(
        Value(name, to_shape(meta) if meta is not None else None, stable, owner, place)
        for name, meta, stable, owner, place in prepared.values
    )


def to_shape(meta: tuple[str, Sequence[int], Sequence[int]]) -> Shape:
    dtype, sizes, strides = meta
    return Shape(dtype, tuple(sizes), tuple(strides))


@dataclasses.dataclass(frozen=True)
class Work:
    """What one step does, without its time. `ProfileRow` of the reports, which adds it, describes the fields.

    Here flops, read_bytes and written_bytes are of one run.
    """

    name: str
    nodes: tuple[str, ...]
    op: str
    kind: str
    route: str
    where: str
    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    shapes: str = ""
    module: str = ""


class PreparedView:
    """A prepared program with its steps described."""

    def __init__(self, executable: _C.Executable, prepared: _C.PreparedProgram) -> None:
        self.nodes = nodes_of(executable)
        self.values = values_of(prepared)
        self.stats = prepared.stats
        self.num_threads = prepared.num_threads
        outputs = set(_C.program_outputs(executable))
        self.outputs = outputs
        self.steps = tuple(self._work(*step) for step in prepared.steps)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(value for value in self.values if value.place == "input")

    def _shapes(self, values: Sequence[int]) -> list[Shape]:
        found = (self.values[v].shape for v in values)
        return [shape for shape in found if shape is not None]

    def _work(self, members: Sequence[int], route: str, value: int) -> Work:
        nodes = [self.nodes[m] for m in members]
        if route in ("allocate", "view"):
            shapes = self._shapes([value])
            label = f"{route} {self.values[value].name}"
            return Work(
                label,
                (nodes[0].name,),
                route,
                route,
                "",
                nodes[0].where,
                shapes=" → " + _text(shapes),
                module=nodes[0].module,
            )
        kind = route if route in ("out", "generic", "unstable") else "chain" if len(nodes) > 1 else "call"
        if nodes[0].bodies:
            kind = "control"
        return describe(
            nodes,
            [(self._shapes(n.reads), self._shapes(n.outputs)) for n in nodes],
            kind,
            "" if kind == route else route,
            self._boundary(nodes) if len(nodes) > 1 else None,
        )

    def _boundary(self, nodes: Sequence[Node]) -> tuple[list[Shape], list[Shape]]:
        """The values that a chain reads, and those of its results that other steps read. The others stay in registers."""
        made = {v for n in nodes for v in n.outputs}
        reads = dict.fromkeys(v for n in nodes for v in n.reads if v not in made)
        inside = {id(n) for n in nodes}
        wanted = {v for n in self.nodes if id(n) not in inside for v in n.reads} | self.outputs
        return self._shapes(list(reads)), self._shapes([v for v in sorted(made) if v in wanted])


def describe(
    nodes: Sequence[Node],
    shapes: Sequence[tuple[Sequence[Shape], Sequence[Shape]]],
    kind: str,
    route: str,
    boundary: tuple[Sequence[Shape], Sequence[Shape]] | None = None,
) -> Work:
    """The work of one or more nodes that run as one."""
    names = tuple(n.name for n in nodes)
    reads, writes = boundary or shapes[0]
    read_bytes, written_bytes = (
        (sum(s.bytes for s in reads), sum(s.bytes for s in writes))
        if boundary
        else moved_bytes(nodes[0].op, reads, writes)
    )
    return Work(
        name=names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
        nodes=names,
        op="+".join(short_name(n.op) for n in nodes),
        kind=kind,
        route=route,
        where=_lines(nodes),
        flops=sum(flops(n.op, r, w, n.constants) for n, (r, w) in zip(nodes, shapes, strict=True)),
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        shapes=f"{_text(reads)} → {_text(writes)}",
        module=" ".join(dict.fromkeys(n.module for n in nodes if n.module)),
    )


def _text(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(str, shapes))


def _lines(nodes: Sequence[Node]) -> str:
    """Model lines in order, each once: "net.py:12", "net.py:12,14"."""
    lines: dict[str, list[str]] = {}
    for node in nodes:
        path, _, line = node.where.rpartition(":")
        if line and line not in lines.setdefault(path, []):
            lines[path].append(line)
    return " ".join(f"{path}:{','.join(numbers)}" for path, numbers in lines.items())
