"""Regions with operators such as `t_` and `squeeze_`, which change how a tensor views its memory, and writes through other dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.training.graph_split import writes
from staticrt.training.overlaps import memory_of


def written_later(gm: fx.GraphModule) -> str:
    """The write to a value of a Dynamo graph whose view was changed in place before, or that is viewed with another dtype.

    AOTAutograd writes the former, or differentiates the write, with the shape that it had first, and the latter as a write
    that autograd sees, which raises for views of leaves.

    Returns:
        What to tell users; "" if there is none.
    """
    changes: dict[int | None, str] = {}  # by memory
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
            continue
        memory = memory_of(node.all_input_nodes[0])
        if node.op == "call_method" and _changes_view(node.target):
            changes[memory] = f"{node.target} changes a view in place"
        elif node.target == "view" and torch.dtype in map(type, (*node.args, *node.kwargs.values())):
            changes[memory] = "a view has another dtype"
        elif memory in changes and writes(node):
            return f"{changes[memory]}, which {node.name} writes"
    return ""


def viewed_in_place(gm: fx.GraphModule, metadata: Any) -> str:
    """The result that AOTAutograd makes again as a view of a value whose shape an operator such as `t_` may have changed.

    Returns:
        What to tell users; "" if there is none.
    """
    changes = [
        str(node.target) for node in gm.graph.nodes if node.op == "call_method" and _changes_view(node.target)
    ]
    for i, info in enumerate(metadata.output_info if changes else ()):
        if info.output_type.name.startswith("alias_of"):
            return f"result {i} is a view, and {changes[0]} changes a view in place"
    return ""


def _changes_view(method: Any) -> bool:
    packet: Any = getattr(torch.ops.aten, method, None) if method.endswith("_") else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    names = packet.overloads()  # type: ignore[no-untyped-call]
    return any(torch.Tag.inplace_view in getattr(packet, name).tags for name in names)
