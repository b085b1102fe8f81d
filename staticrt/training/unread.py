"""Operators whose results are not read: eager still draws random numbers and raises errors; AOTAutograd removes them."""

from __future__ import annotations

from torch import fx

from staticrt.ops.raising import may_raise_named
from staticrt.training.graph_split import draws, writes


def unread_effects(gm: fx.GraphModule) -> dict[str, str]:
    """Nodes of a Dynamo graph that have to run although nothing reads their results; each runs eagerly.

    Returns:
        Why, by their names.
    """
    found: dict[str, str] = {}
    read: set[fx.Node] = set()
    for node in reversed(gm.graph.nodes):
        if node.op in ("call_function", "call_method") and node not in read:
            effect = "it draws random numbers" if draws(node) else "it may raise" if _may_raise(node) else ""
            is_unseen = not writes(node) or _writes_unread(node, read)
            if effect and is_unseen:
                found[node.name] = f"{effect}, and its result is not read"
            elif not effect and is_unseen and node.meta.get("example_value") is not None:
                continue
        read.update(node.all_input_nodes)
    return found


def _may_raise(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return may_raise_named(name, node.meta.get("example_value"))


def _writes_unread(node: fx.Node, read: set[fx.Node]) -> bool:
    """Whether a node writes a value of the graph that nothing reads later."""
    written = node.args[0] if node.args else None
    return isinstance(written, fx.Node) and written.op.startswith("call_") and written not in read
