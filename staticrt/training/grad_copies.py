"""Removes copies of gradients that `backward()` makes only while a step is recorded.

`backward()` moves a gradient into `.grad` if nothing else references it, and copies it otherwise. A recorder
references every tensor, so a recording copies every gradient.
"""

from __future__ import annotations

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import output_nodes, tensor_meta

aten = torch.ops.aten
COPY = aten.copy.default
NEW = aten.new_empty_strided.default


def remove_copies_of_gradients(gm: fx.GraphModule) -> int:
    """Replace `copy(new_empty_strided(g, …), g)` by `g` where that cannot be observed.

    Args:
        gm: functional ATen graph with metadata, rewritten in place.

    Returns:
        The number of copies removed. A copy stays if its strides differ from those of `g`, or if `g` shares memory with
        an input, a result, or the replacement of another copy.
    """
    copies = [
        node for node in gm.graph.find_nodes(op="call_function", target=COPY) if _is_copy_of_gradient(node)
    ]
    if not copies:
        return 0
    aliases = AliasInfo(gm)
    taken = {aliases.storage(node) for node in output_nodes(gm)}
    taken |= {aliases.storage(node) for node in gm.graph.find_nodes(op="placeholder")}
    removed = 0
    for node in copies:
        source = node.args[1]
        assert isinstance(source, fx.Node)
        storage = aliases.storage(source)
        if storage in taken or aliases.is_written(source):
            continue
        taken.add(storage)
        empty = node.args[0]
        node.replace_all_uses_with(source)
        gm.graph.erase_node(node)
        if isinstance(empty, fx.Node) and not empty.users:
            gm.graph.erase_node(empty)
        removed += 1
    if removed:
        gm.recompile()
    return removed


def _is_copy_of_gradient(node: fx.Node) -> bool:
    empty, source = node.args[0], node.args[1]
    if not isinstance(empty, fx.Node) or empty.target is not NEW or empty.args[0] is not source:
        return False
    made, given = tensor_meta(node), tensor_meta(source)
    return (
        made is not None
        and given is not None
        and made.dtype == given.dtype
        and made.device == given.device
        and tuple(map(str, made.shape)) == tuple(map(str, given.shape))
        and tuple(map(str, made.stride())) == tuple(map(str, given.stride()))
    )
