"""Views that a region makes while gradients are off.

In eager such a view has no history. AOTAutograd makes views among the results once more after the graph has run, in the
caller's grad mode, so that gradients would flow through them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def view_without_history(gm: fx.GraphModule) -> str:
    """The result of a graph of Dynamo that views a tensor with gradients and was made while they were off.

    Returns:
        What to tell users; "" if there is none.
    """
    off = _without_gradients(gm)
    results: Any = gm.graph.output_node().args[0] if off else ()
    for index, node in enumerate(results):
        chain = [node] if isinstance(node, fx.Node) else []
        while chain and (source := _viewed(chain[-1])) is not None:
            chain.append(source)
        if off.intersection(chain) and any(value.requires_grad for value in _tensors(chain[-1])):
            return f"result {index} is a view made while gradients are off"
    return ""


def _without_gradients(gm: fx.GraphModule) -> set[fx.Node]:
    """Nodes that run while gradients are off."""
    found: set[fx.Node] = set()
    enabled, inference = True, 0
    for node in gm.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        elif name == "_enter_inference_mode":
            inference += 1
        elif name == "_exit_inference_mode":
            inference -= 1
        elif node.op.startswith("call_") and (inference or not enabled):
            found.add(node)
    return found


def _viewed(node: fx.Node) -> fx.Node | None:
    """An argument of a node whose memory it shares; None: its memory is its own."""
    own = {value.untyped_storage()._cdata for value in _tensors(node)}
    for source in node.all_input_nodes:
        if not own.isdisjoint(value.untyped_storage()._cdata for value in _tensors(source)):
            return source
    return None


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("example_value")
    found = value if isinstance(value, (tuple, list)) else [value]
    return [each for each in found if isinstance(each, torch.Tensor) and each.layout == torch.strided]
