"""Modes of torch around a region: results that it makes while gradients are off, and batched gradients.

In eager a view made while gradients are off has no history. AOTAutograd makes views among the results once more after the graph has run, in the
caller's grad mode, so that gradients would flow through them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


def view_without_history(gm: fx.GraphModule) -> str:
    """The result of a graph of Dynamo that views a tensor with gradients and was made while they were off.

    Returns:
        What to tell users; "" if there is none.
    """
    off = {node for node, gradients, inference in _modes(gm) if inference or not gradients}
    results: Any = gm.graph.output_node().args[0] if off else ()
    for index, node in enumerate(results):
        chain = [node] if isinstance(node, fx.Node) else []
        while chain and (source := _viewed(chain[-1])) is not None:
            chain.append(source)
        if off.intersection(chain) and any(value.requires_grad for value in _tensors(chain[-1])):
            return f"result {index} is a view made while gradients are off"
    return ""


def is_all_inference(gm: fx.GraphModule) -> bool:
    """Whether a graph of Dynamo turns inference mode on for all that it computes, and no result is an input or views one."""
    modes = _modes(gm)
    if not modes or not all(inference for _node, _gradients, inference in modes):
        return False
    results: Any = gm.graph.output_node().args[0]
    chain = [node for node in results if isinstance(node, fx.Node)]
    for node in chain:
        if (source := _viewed(node)) is not None:
            chain.append(source)
    return all(node.op.startswith("call_") for node in chain)


def inference_result(gm: fx.GraphModule) -> str:
    """The result of a graph of Dynamo that is an inference tensor, which AOTAutograd's are not; as `view_without_history`."""
    inside = {node for node, _gradients, inference in _modes(gm) if inference}
    results: Any = gm.graph.output_node().args[0] if inside else ()
    made = [index for index, node in enumerate(results) if node in inside]
    return f"result {made[0]} is an inference tensor" if made else ""


def _modes(gm: fx.GraphModule) -> list[tuple[fx.Node, bool, bool]]:
    """Each compute node, with whether gradients and inference mode are on there."""
    found: list[tuple[fx.Node, bool, bool]] = []
    gradients, inference = True, [False]
    for node in gm.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.target is torch._C._set_grad_enabled:
            gradients = bool(node.args[0])
        elif name == "_enter_inference_mode":
            inference.append(bool(node.args[0]))
        elif name == "_exit_inference_mode":
            inference.pop()
        elif node.op.startswith("call_"):
            found.append((node, gradients, inference[-1]))
    return found


def _viewed(node: fx.Node) -> fx.Node | None:
    """The argument whose memory a node shares; None if it has memory of its own."""
    own = {value.untyped_storage()._cdata for value in _tensors(node)}
    for source in node.all_input_nodes:
        if not own.isdisjoint(value.untyped_storage()._cdata for value in _tensors(source)):
            return source
    return None


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("example_value")
    found = value if isinstance(value, (tuple, list)) else [value]
    return [each for each in found if isinstance(each, torch.Tensor) and each.layout == torch.strided]


@contextlib.contextmanager
def outside_vmap() -> Iterator[None]:
    """Context manager: operators that take no batched tensor run as outside of `is_grads_batched`; they may draw numbers."""
    depth = 0
    while torch._C._dispatch_tls_is_dispatch_key_included("VmapMode"):
        torch._C._vmapmode_decrement_nesting()  # type: ignore[attr-defined]
        depth += 1
    try:
        yield
    finally:
        for _ in range(depth):
            torch._C._vmapmode_increment_nesting()  # type: ignore[attr-defined]
