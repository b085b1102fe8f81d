"""Undo copies that accumulation makes only while a step is recorded.

`backward()` puts a gradient that nobody else holds into `.grad` as it is, and else a copy of it. A recorder holds
every tensor, so in a recording every gradient is copied.
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
    """Replace `copy(new_empty_strided(g, …), g)` by `g` where nobody can tell.

    Args:
        gm: functional ATen graph with metadata, rewritten in place.

    Returns:
        How many copies went. One stays if its result is laid out otherwise than `g`, or if `g` shares memory with an
        input, a result, or what another copy became.
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
