"""Turn in-place calls into functional ones where that cannot be observed.

Graphs given as `fx.GraphModule` may write in place. A written value has no single definition: it cannot
be merged, folded, fused or placed in the arena. Where the written tensor has no views, `x.add_(y)` is
`x' = x.add(y)` with every later reader reading `x'`; an input gets its new value by one `copy_` at the end.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.effects import node_facts, written_nodes
from staticrt.passes.symbols import same_meta

COPY = torch.ops.aten.copy_.default


@register_pass
class FunctionaliseInPlace(GraphPass):
    """Replace in-place calls on tensors without views by their functional twins.

    Left as they are: writes through or under a view, writes to an input that is also returned, to a
    constant, and calls whose twin would give another dtype, size or layout.

    Requires: ATen-level graph.
    Ensures:  outputs, written inputs and random draws as before, bit by bit.
    """

    name = "functionalise-in-place"

    def run(self, gm: fx.GraphModule) -> PassResult:
        aliases = AliasInfo(gm)
        members: dict[Any, list[fx.Node]] = {}
        for node in gm.graph.nodes:
            members.setdefault(aliases.storage(node), []).append(node)
        chosen = [
            nodes
            for nodes in members.values()
            if aliases.is_written(nodes[0]) and _convertible(nodes, aliases)
        ]
        count = sum(_convert(nodes) for nodes in chosen)
        return PassResult(gm, changed=count > 0, count=count)


def _twin(node: fx.Node) -> OpOverload | None:
    """`aten.add.Tensor` for a call of `aten.add_.Tensor`."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    base, _, overload = str(target).removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, base.removesuffix("_"), None)
    if not base.endswith("_") or base.endswith("__") or packet is None or overload not in packet.overloads():
        return None
    twin: OpOverload = getattr(packet, overload)
    same = [(a.name, str(a.type)) for a in twin._schema.arguments] == [
        (a.name, str(a.type)) for a in target._schema.arguments
    ]
    return twin if same and not twin._schema.is_mutable else None


def _convertible(nodes: list[fx.Node], aliases: AliasInfo) -> bool:
    """The first node makes the storage, all others write it in place and return it."""
    first, writers = nodes[0], nodes[1:]
    if first.op == "get_attr" or (first.op == "call_function" and node_facts(first).aliases):
        return False
    if first.op == "placeholder" and (
        any(aliases.reaches_output(n) for n in nodes) or all(n.target is COPY for n in writers)
    ):
        return False
    held = set(nodes)
    for writer in writers:
        if writer.op != "call_function" or node_facts(writer).mutates != (0,):
            return False
        others = [n for n in writer.all_input_nodes if n is not writer.args[0]]
        if writer.args[0] not in held or _twin(writer) is None or not _same_result(writer):
            return False
        if any(n in held for n in others) and writer.target is COPY:
            return False
    # A call that writes this storage without returning it, such as a batch norm, is not among them.
    return not any(
        user not in held and user.op == "call_function" and node in written_nodes(user)
        for node in nodes
        for user in node.users
    )


def _same_result(writer: fx.Node) -> bool:
    """The twin gives a tensor like the one that was written: in place, the dtype never changes."""
    before = tensor_meta(writer.args[0])
    twin = _twin(writer)
    if before is None or twin is None:
        return False
    args: Any = fx.map_arg(writer.args, lambda n: n.meta["val"])
    kwargs: Any = fx.map_arg(writer.kwargs, lambda n: n.meta["val"])
    env = getattr(getattr(before, "fake_mode", None), "shape_env", None)
    try:
        with env.suppress_guards() if env is not None else contextlib.nullcontext():
            after = twin(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError):
        return False
    return isinstance(after, torch.Tensor) and same_meta(after, before)


def _convert(nodes: list[fx.Node]) -> int:
    first, writers = nodes[0], nodes[1:]
    graph = first.graph
    current = first
    for writer in writers:
        twin = _twin(writer)
        assert twin is not None
        # Earlier iterations replaced the tensor that this call writes by `current`.
        with graph.inserting_before(writer):
            functional = graph.call_function(twin, writer.args, dict(writer.kwargs))
        functional.meta = dict(writer.meta)
        for reader in list(current.users):
            if reader is not writer and reader > writer:
                reader.replace_input_with(current, functional)
        writer.replace_all_uses_with(functional)
        graph.erase_node(writer)
        current = functional
    if first.op == "placeholder":
        with graph.inserting_before(graph.output_node()):
            write = graph.call_function(COPY, (first, current))
        write.meta = {**current.meta, "val": first.meta["val"]}
    return len(writers)
