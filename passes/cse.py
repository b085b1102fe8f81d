"""Compute equal calls once.

Two calls are equal if op and arguments (including number types) are equal and no node in between wrote the
storage of an argument.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from staticrt.ops.schema import bind_arguments
from staticrt.passes.aliasing import AliasInfo, holds_tensors
from staticrt.passes.base import GraphPass, PassResult, register_pass
from staticrt.passes.effects import is_pure, node_facts

# Each call returns new memory that may be written separately, so calls must not be merged.
UNINITIALISED = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)

# A node's `meta[APART]`: calls are equal only if it is equal, too. It keeps apart the values that a backward computes
# twice in order not to hold them in between.
APART = "apart"


@register_pass
class MergeEqualCalls(GraphPass):
    """Common subexpression elimination.

    Requires: ATen-level graph.
    Ensures:  of calls with equal values one is left, unless a write or an output keeps them apart;
              never merges random ops; outputs bitwise equal.
    """

    name = "merge-equal-calls"

    def run(self, gm: fx.GraphModule) -> PassResult:
        aliases = AliasInfo(gm)
        seen: dict[Hashable, fx.Node] = {}
        merged = 0
        for node in list(gm.graph.nodes):
            if node.op == "get_attr":
                key: Hashable = ("get_attr", node.target)
            elif node.op != "call_function" or not _may_merge(node):
                continue
            else:
                key = (node.target, node.meta.get(APART), _call_key(node, aliases))
            first = seen.setdefault(key, node)
            if first is node:
                continue
            if not _may_become(node, first, aliases):
                seen[key] = node
                continue
            aliases.replaced(node, first)
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            merged += 1
        return PassResult(gm, changed=merged > 0, count=merged)


def _may_merge(node: fx.Node) -> bool:
    if isinstance(node.target, HigherOrderOperator) or not is_pure(node):
        return False
    return not (isinstance(node.target, OpOverload) and node.target._overloadpacket in UNINITIALISED)


def _may_become(node: fx.Node, first: fx.Node, aliases: AliasInfo) -> bool:
    """Whether readers of `node` may read `first`."""
    # Of several results each that leaves the graph is a tensor of its own, and has memory of its own unless it is a view.
    leaves = aliases.is_output if node_facts(node).is_view else aliases.reaches_output
    if any(
        item.args[1] == other.args[1] and leaves(item) and leaves(other)
        for item in _items(node)
        for other in _items(first)
    ):
        return False
    if not holds_tensors(node):
        return True
    if aliases.is_output(node) and aliases.is_output(first):
        return False
    if node_facts(node).is_view or node.op == "get_attr" or _is_item_of_view(node):
        return True  # both see the same storage already
    if aliases.is_written(node) or aliases.is_written(first):
        return False
    return not (aliases.reaches_output(node) and aliases.reaches_output(first))


def _items(node: fx.Node) -> list[fx.Node]:
    return [user for user in node.users if user.target is operator.getitem]


def _is_item_of_view(node: fx.Node) -> bool:
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, fx.Node) and node_facts(source).is_view


def _call_key(node: fx.Node, aliases: AliasInfo) -> Hashable:
    args: Any = node.args
    kwargs: dict[str, Any] = dict(node.kwargs)
    if isinstance(node.target, OpOverload):
        args, kwargs = bind_arguments(node.target, args, kwargs), {}
    return (_value_key(args, node, aliases), _value_key(kwargs, node, aliases))


def _value_key(value: Any, at: fx.Node, aliases: AliasInfo) -> Hashable:
    """A key that tells 1 from 1.0 and True, 0.0 from -0.0, and a storage from itself after a write."""
    if isinstance(value, fx.Node):
        return (value, aliases.writes_before(value, at))
    if isinstance(value, (list, tuple)):
        return tuple(_value_key(v, at, aliases) for v in value)
    if isinstance(value, dict):
        return tuple((k, _value_key(v, at, aliases)) for k, v in sorted(value.items()))
    if isinstance(value, slice):
        return ("slice", *(_value_key(v, at, aliases) for v in (value.start, value.stop, value.step)))
    return (type(value), repr(value))
