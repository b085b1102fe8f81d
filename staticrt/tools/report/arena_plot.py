"""Draws a planned arena: the bytes of each value over the nodes during which it is live."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from staticrt.errors import InputError
from staticrt.memory.units import format_bytes
from staticrt.native import _C
from staticrt.ops.work import short_name
from staticrt.runtime.explain.inspectable import Graph
from staticrt.runtime.explain.programs import PreparedView
from staticrt.tools.report.drawing import Drawing, Point, color_of
from staticrt.tools.report.graphs import find_graph

LEFT, WIDTH, TOP, ARENA, LIVE = 96, 1100, 56, 420, 180
_MOST_LABELS = 60  # boxes with their name written in


@dataclasses.dataclass(frozen=True)
class Block:
    """Bytes held while nodes [begin, end) run.

    Args:
        kind: arena, workspace (scratch bytes of a node), output (the caller's), unmanaged (a kernel's own).
        name: the value's, or that of the workspace's node.
        offset: bytes in the arena; -1 outside it.
    """

    kind: str
    name: str
    detail: str
    begin: int
    end: int
    size: int
    offset: int


@dataclasses.dataclass(frozen=True)
class ArenaLayout:
    """The memory of one prepared program.

    Args:
        nodes: node names, in order.
        blocks: everything but inputs, constants and values that stay in registers.
        arena_bytes, lower_bound_bytes: planned, and the least any plan needs.
    """

    nodes: tuple[str, ...]
    blocks: tuple[Block, ...]
    arena_bytes: int
    lower_bound_bytes: int

    def live_bytes(self, kinds: Sequence[str]) -> list[int]:
        """Bytes of these kinds held while each node runs."""
        steps = [0] * (len(self.nodes) + 1)
        for block in self.blocks:
            if block.kind in kinds:
                steps[block.begin] += block.size
                steps[block.end] -= block.size
        live, total = [], 0
        for change in steps[:-1]:
            total += change
            live.append(total)
        return live

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once: the arena, and outputs and unmanaged values beside it."""
        beside = self.live_bytes(("output", "unmanaged"))
        return self.arena_bytes + max(beside, default=0)


def layout_of(executable: _C.Executable, prepared: _C.PreparedProgram) -> ArenaLayout:
    """The memory of a prepared program, from its plan."""
    view = PreparedView(executable, prepared)
    maker = {value: node for node in view.nodes for value in node.outputs}
    blocks = []
    for kind, number, begin, end, size, offset, sharing, other in prepared.blocks:
        if kind == "workspace":
            node = view.nodes[number]
            name, detail = node.name, f"workspace of {short_name(node.op)}"
        else:
            node = maker[number]
            name, detail = view.values[number].name, f"{short_name(node.op)} {view.values[number].shape}"
        if kind == "donated":
            offset = -1  # of the donated input, not of the arena
            detail += ", in bytes that the caller gave up"
        detail += f", {sharing} {view.values[other].name}" if sharing else ""
        detail += f"   {node.where}" if node.where else ""
        blocks.append(Block(kind, name, detail, begin, end, size, offset))
    return ArenaLayout(
        tuple(node.name for node in view.nodes),
        tuple(blocks),
        view.stats["arena_bytes"],
        view.stats["lower_bound_bytes"],
    )


def find_layout(graphs: Sequence[Graph], number: int, signature: int) -> tuple[str, ArenaLayout]:
    """The layout of one signature of one graph, and the graph's name.

    Raises:
        InputError: there is no such graph or signature.
    """
    graph = find_graph(graphs, number)
    programs = _C.prepared_programs(graph.native)
    if not -len(programs) <= signature < len(programs):
        raise InputError(
            f"{graph.name} has {len(programs)} prepared signatures, no number {signature}",
            fix="call the compiled function first, with option prepared=True",
        )
    return graph.name, layout_of(graph.native, programs[signature])


def plot_arena(graphs: Sequence[Graph], number: int, signature: int) -> Drawing:
    """The picture of one signature's memory. See `find_layout` for errors."""
    return draw_layout(*find_layout(graphs, number, signature))


def draw_layout(name: str, layout: ArenaLayout) -> Drawing:
    """Above: the arena, offset over time, one box per value. Below: bytes held over time."""
    drawing = Drawing(LEFT + WIDTH + 20, TOP + ARENA + LIVE + 130)
    count = max(len(layout.nodes), 1)
    planned = max(layout.arena_bytes, 1)
    drawing.text(
        LEFT,
        22,
        f"{name}: {len(layout.nodes)} nodes; arena {format_bytes(layout.arena_bytes)}, lower bound "
        f"{format_bytes(layout.lower_bound_bytes)}, peak with outputs {format_bytes(layout.peak_bytes)}",
        14,
    )
    drawing.text(LEFT, 42, "arena: which value holds which bytes while which node runs", 11)

    def x(node: float) -> float:
        return LEFT + WIDTH * node / count

    def y(offset: float) -> float:
        return TOP + ARENA * (1 - offset / planned)

    for k in range(5):
        drawing.line([(LEFT, y(planned * k / 4)), (LEFT + WIDTH, y(planned * k / 4))], "#dddddd")
        drawing.text(LEFT - 6, y(planned * k / 4) + 4, format_bytes(layout.arena_bytes * k / 4), 10, "end")
    inside = [b for b in layout.blocks if b.offset >= 0 and b.size]
    labelled = sorted(inside, key=lambda b: (-b.size * (b.end - b.begin), b.name))[:_MOST_LABELS]
    names = {id(b) for b in labelled}
    for block in inside:
        height = ARENA * block.size / planned
        top, width = y(block.offset + block.size), x(block.end) - x(block.begin)
        title = f"{block.name}: {format_bytes(block.size)} at {block.offset}, nodes {block.begin}–{block.end - 1}\n{block.detail}"
        color = "#c8c8c8" if block.kind == "workspace" else color_of(block.name)
        drawing.rectangle(x(block.begin), top, max(width - 0.5, 0.5), max(height - 0.5, 0.5), color, title)
        if id(block) in names and height > 9 and width > 6 * len(block.name):
            drawing.text(x(block.begin) + 3, top + height / 2 + 3, block.name, 9)
    _draw_live(drawing, layout, x, TOP + ARENA + 40)
    return drawing


def _draw_live(drawing: Drawing, layout: ArenaLayout, x: object, top: int) -> None:
    assert callable(x)
    arena = layout.live_bytes(("arena", "workspace"))
    outputs = layout.live_bytes(("output",))
    unmanaged = layout.live_bytes(("unmanaged",))
    stack = [arena, outputs, unmanaged]
    highest = max([*map(sum, zip(*stack, strict=True)), layout.arena_bytes, 1])

    def y(size: float) -> float:
        return top + LIVE * (1 - size / highest)

    drawing.text(LEFT, top - 8, "bytes held while each node runs", 11)
    below = [0] * len(arena)
    for sizes, color, title in zip(
        stack,
        ("#4878a8", "#78a848", "#d8a040"),
        ("planned values", "outputs", "unmanaged values"),
        strict=True,
    ):
        above = [a + b for a, b in zip(below, sizes, strict=True)]
        if any(sizes):
            points: list[Point] = []
            for node, size in enumerate(above):
                points += [(x(node), y(size)), (x(node + 1), y(size))]
            for node, size in reversed(list(enumerate(below))):
                points += [(x(node + 1), y(size)), (x(node), y(size))]
            drawing.polygon(points, color, title)
        below = above
    for size, color, name, place, anchor in (
        (layout.arena_bytes, "#c03030", "arena", LEFT + WIDTH, "end"),
        (layout.lower_bound_bytes, "#303030", "lower bound", LEFT + WIDTH - 160, "end"),
    ):
        drawing.line([(LEFT, y(size)), (LEFT + WIDTH, y(size))], color)
        drawing.text(place, y(size) - 4, f"{name} {format_bytes(size)}", 10, anchor)
    for k in (0, 2, 4):
        drawing.text(LEFT - 6, y(highest * k / 4) + 4, format_bytes(highest * k / 4), 10, "end")
    step = max(1, len(layout.nodes) // 12)
    for node in range(0, len(layout.nodes), step):
        drawing.text(x(node), top + LIVE + 16, layout.nodes[node][:14], 9)
    drawing.text(
        LEFT,
        top + LIVE + 40,
        "blue: planned values, green: outputs (the caller's), orange: unmanaged, grey boxes: scratch bytes of a node",
        10,
    )
