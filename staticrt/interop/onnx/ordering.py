"""The order of a graph's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import GraphProto, NodeProto

from staticrt.errors import OnnxError


def in_order(nodes: Sequence[NodeProto], where: str) -> Sequence[NodeProto]:
    """Sort nodes topologically: each follows the nodes whose results it reads.

    ONNX requires this order, but some converters append nodes at the end, and ONNX Runtime accepts such models.

    Raises:
        OnnxError: the nodes form a cycle.
    """
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits = [{maker[name] for name in _reads(node) if name in maker} for node in nodes]
    if all(other < index for index, others in enumerate(waits) for other in others):
        return nodes
    users: dict[int, list[int]] = {}
    for index, others in enumerate(waits):
        for other in others:
            users.setdefault(other, []).append(index)
    missing = [len(others) for others in waits]
    ready = [index for index, count in enumerate(missing) if count == 0]
    found = []
    for index in ready:  # grows
        found.append(nodes[index])
        for user in users.get(index, ()):
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    if len(found) < len(nodes):
        stuck = next(node for node, count in zip(nodes, missing, strict=True) if count)
        raise OnnxError(
            f"{stuck.op_type} reads a value that depends on its own result",
            at=f"{stuck.op_type} {stuck.name or ', '.join(stuck.output)!r} of {where}",
            fix="the model is invalid; export it again",
        )
    return found


def _reads(node: NodeProto) -> Iterable[str]:
    """Names that a node reads, including those of its sub-graphs."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield from _outer(graph)


def _outer(graph: GraphProto) -> set[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own.update(name for node in graph.node for name in node.output)
    read = {name for node in graph.node for name in _reads(node)} | {value.name for value in graph.output}
    return read - own
