"""Operators whose results are not read: eager still draws random numbers and raises errors; AOTAutograd removes them.

It keeps some, such as the check that a matrix was invertible, by tokens: each takes and returns one. Programs keep the
order of such operators themselves.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.utils import _pytree as pytree

from staticrt.ops import facts_of_call
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
            elif (
                not effect
                and is_unseen
                and (node.meta.get("example_value") is not None or node.target is operator.setitem)
            ):
                continue
        read.update(node.all_input_nodes)
    return found


def _may_raise(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.target is operator.getitem or node.target is operator.setitem:
        return any(isinstance(each.meta.get("example_value"), torch.Tensor) for each in _nodes(node.args[1]))
    return may_raise_named(name, node.meta.get("example_value"))


def _nodes(index: object) -> list[fx.Node]:
    return [each for each in pytree.tree_leaves(index) if isinstance(each, fx.Node)]


def _writes_unread(node: fx.Node, read: set[fx.Node]) -> bool:
    """Whether a node writes a value of the graph that nothing reads later."""
    written = node.args[0] if node.args else None
    return isinstance(written, fx.Node) and written.op.startswith("call_") and written not in read


def num_tokens(gm: fx.GraphModule) -> int:
    """How many of the first inputs and results of one of AOTAutograd's graphs are tokens."""
    given = {node.args[0] for node in gm.graph.nodes if _takes_token(node)}
    return sum(node in given for node in gm.graph.find_nodes(op="placeholder"))


def without_tokens(gm: fx.GraphModule) -> bool:
    """Replace `with_effects(token, operator, ...)` by a call of the operator, and remove the tokens.

    Returns:
        False where an operator's place would not be kept: then the graph is unchanged.
    """
    calls = [node for node in gm.graph.nodes if _takes_token(node)]
    if not calls or not all(map(_stays, calls)):
        return not calls
    tokens = {node.args[0] for node in calls}
    for node in calls:
        _token, target, *rest = node.args
        results = node.meta["val"][1:]
        several = len(target._schema.returns) > 1  # type: ignore[union-attr]
        with gm.graph.inserting_before(node):
            call = gm.graph.call_function(target, tuple(rest), node.kwargs)  # type: ignore[arg-type]
        call.meta.update(node.meta, val=results if several else results[0])
        for item in list(node.users):
            index = item.args[1]
            if index == 0:
                tokens.add(item)
            elif several:
                item.args = (call, index - 1)  # type: ignore[operator]
            else:
                item.replace_all_uses_with(call)
                gm.graph.erase_node(item)
    output = gm.graph.output_node()
    output.args = (tuple(item for item in output.args[0] if item not in tokens),)  # type: ignore[union-attr]
    readers = {user for token in tokens for user in token.users if user is not output}  # type: ignore[union-attr]
    for node in reversed(gm.graph.nodes):
        if node in tokens or node in readers:
            gm.graph.erase_node(node)
    return True


def _takes_token(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() == "with_effects"  # type: ignore[no-untyped-call]


def _stays(node: fx.Node) -> bool:
    """Whether the operator of `with_effects` is one that no pass removes."""
    target = node.args[1]
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not facts_of_call(target, node.args[2:], node.kwargs).pure
