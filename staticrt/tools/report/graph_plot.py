"""Drawing a graph: layers from top to bottom, one box per node, fused chains in one colour. No Graphviz needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from staticrt.native import _C
from staticrt.ops.work import short_name
from staticrt.runtime.explain.inspectable import Graph
from staticrt.runtime.explain.programs import Node, PreparedView, nodes_of
from staticrt.tools.report.drawing import Drawing
from staticrt.tools.report.graphs import find_graph

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 34, 16, 26, 24
COLORS = {
    "call": "#cfe3f5",
    "chain": "#d4edda",
    "skip": "#f1f1f1",
    "out": "#e6dff5",
    "generic": "#f8dcc4",
    "unstable": "#f5c6c6",
    "control": "#fff3c4",
    "input": "#ffffff",
    "output": "#ffffff",
}
LEGEND = {
    "call": "direct kernel call",
    "chain": "fused chain",
    "skip": "view or number: no step",
    "out": "out variant",
    "generic": "dispatcher (may allocate)",
    "unstable": "shape depends on data",
    "control": "control flow",
}


@dataclasses.dataclass(frozen=True)
class Box:
    """One drawn node. `sources` are the boxes whose values it reads."""

    name: str
    label: str
    kind: str
    title: str
    sources: tuple[str, ...]


def boxes_of(graph: Graph) -> list[Box]:
    """The caller's inputs, nodes and outputs; kinds and shapes are those of the last prepared signature."""
    nodes = nodes_of(graph.native)
    programs = _C.prepared_programs(graph.native)
    view = PreparedView(graph.native, programs[-1]) if programs else None
    kinds = _kinds(nodes, view)
    maker = {value: node.name for node in nodes for value in node.outputs}
    inputs = {number: name for number, name in enumerate(graph.inputs) if name}
    boxes = [Box(name, f"{name}  {_shape(view, number)}", "input", "", ()) for number, name in inputs.items()]
    for node in nodes:
        sources = dict.fromkeys(
            found for value in node.reads if (found := maker.get(value) or inputs.get(value)) is not None
        )
        shapes = ", ".join(filter(None, (_shape(view, value) for value in node.outputs)))
        title = f"{node.name} = {node.op}   {shapes}   {node.where}".rstrip()
        boxes.append(
            Box(node.name, f"{short_name(node.op)}  {shapes}", kinds[node.name], title, tuple(sources))
        )
    results = tuple(dict.fromkeys(maker[v] for v in _C.program_outputs(graph.native) if v in maker))
    boxes.append(Box("output", "output", "output", "", results))
    return boxes


def _shape(view: PreparedView | None, value: int) -> str:
    shape = view.values[value].shape if view is not None else None
    return "" if shape is None else str(shape)


def _kinds(nodes: Sequence[Node], view: PreparedView | None) -> dict[str, str]:
    kinds = {node.name: "control" if node.bodies else "skip" if view else "call" for node in nodes}
    for step in view.steps if view else ():
        if step.kind not in ("allocate", "view"):
            kinds.update(dict.fromkeys(step.nodes, step.kind))
    return kinds


def _layers(boxes: Sequence[Box]) -> list[list[Box]]:
    """Longest path from the top; in a layer, boxes lie near the mean of what they read."""
    depth: dict[str, int] = {}
    for box in boxes:
        depth[box.name] = max((depth[source] + 1 for source in box.sources), default=0)
    users: dict[str, list[int]] = {}
    for box in boxes:
        for source in box.sources:
            users.setdefault(source, []).append(depth[box.name])
    for box in boxes:  # a node without sources stands right above its first user
        if not box.sources and box.name in users:
            depth[box.name] = max(0, min(users[box.name]) - 1)
    layers: list[list[Box]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for box in boxes:
        layers[depth[box.name]].append(box)
    place: dict[str, float] = {}
    for layer in layers:
        order = {box.name: i for i, box in enumerate(layer)}
        layer.sort(key=lambda b: (_mean([place[s] for s in b.sources], order[b.name]), order[b.name]))
        for i, box in enumerate(layer):
            place[box.name] = i - (len(layer) - 1) / 2
    return layers


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def draw_boxes(boxes: Sequence[Box], name: str) -> Drawing:
    """The boxes in layers, edges between them."""
    layers = _layers(boxes)
    widest = max(len(layer) for layer in layers)
    width = max(MARGIN * 2 + widest * (BOX_WIDTH + GAP_X), 640)
    drawing = Drawing(width, MARGIN * 3 + 40 + len(layers) * (BOX_HEIGHT + GAP_Y))
    drawing.text(MARGIN, 22, f"{name}: {len(boxes)} boxes", 14)
    x = MARGIN
    for kind, text in LEGEND.items():
        if any(box.kind == kind for box in boxes):
            drawing.rectangle(x, 34, 12, 12, COLORS[kind])
            drawing.text(x + 16, 44, text, 10)
            x += 30 + 6 * len(text)
    at: dict[str, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        left = (width - len(layer) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        for column, box in enumerate(layer):
            at[box.name] = (left + column * (BOX_WIDTH + GAP_X), 64 + row * (BOX_HEIGHT + GAP_Y))
    for box in boxes:
        for source in box.sources:
            (x0, y0), (x1, y1) = at[source], at[box.name]
            ends = [(x0 + BOX_WIDTH / 2, y0 + BOX_HEIGHT), (x1 + BOX_WIDTH / 2, y1)]
            drawing.line(ends, "#999999")
    for box in boxes:
        x0, y0 = at[box.name]
        drawing.rectangle(x0, y0, BOX_WIDTH, BOX_HEIGHT, COLORS.get(box.kind, "#eeeeee"), box.title)
        drawing.text(x0 + 5, y0 + 14, box.label[:34], 10)
        if box.kind not in ("input", "output"):
            drawing.text(x0 + 5, y0 + 27, box.name[:36], 8)
    return drawing


def dot_text(boxes: Sequence[Box], name: str) -> str:
    """The graph in Graphviz's language."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = [f"digraph {quoted(name)} {{", "  node [shape=box, style=filled, fontname=sans];"]
    for box in boxes:
        color = COLORS.get(box.kind, "#eeeeee")
        lines.append(f"  {quoted(box.name)} [label={quoted(box.label)}, fillcolor={quoted(color)}];")
        lines += [f"  {quoted(source)} -> {quoted(box.name)};" for source in box.sources]
    return "\n".join([*lines, "}", ""])


def draw_graph(graphs: Sequence[Graph], number: int, path: str | Path) -> None:
    """Draw one graph into a file. See `Tools.draw`."""
    graph = find_graph(graphs, number)
    boxes = boxes_of(graph)
    if Path(path).suffix == ".dot":
        Path(path).write_text(dot_text(boxes, graph.name), encoding="utf-8")
    else:
        draw_boxes(boxes, graph.name).save(path)
