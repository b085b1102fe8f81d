"""Compute each size once.

A traced graph asks for the same size in many places: `sym_size(x, 0)`, `sym_size(relu(x), 0)`, and
arithmetic on both. The trace has each as an expression in the input sizes; equal expressions are equal
numbers for every input that the trace's guards admit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, register_pass
from staticrt.passes.effects import is_pure


@register_pass
class MergeSizes(GraphPass):
    """Keep the first node of each symbolic number, and write numbers that are known as literals.

    Requires: ATen-level graph with symbolic values in `meta["val"]`.
    Ensures:  no two nodes compute the same expression; outputs equal.
    """

    name = "merge-sizes"

    def run(self, gm: fx.GraphModule) -> PassResult:
        first: dict[Any, fx.Node] = {}
        merged = 0
        checked = _checked(gm.graph)
        for node in list(gm.graph.nodes):
            if node in checked:
                continue
            value = node.meta.get("val")
            if isinstance(value, (bool, int, float)) and node.op == "call_function":
                merged += _write_literal(node, value)
                continue
            if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                continue
            expression = value.node.expr
            if (
                node.op == "call_function"
                and is_pure(node)
                and isinstance(value, torch.SymInt)
                and expression.is_Integer
            ):
                merged += _write_literal(node, int(expression))
                continue
            earlier = first.setdefault((type(value), expression), node)
            if earlier is node or node.op != "call_function" or not is_pure(node):
                continue
            node.replace_all_uses_with(earlier)
            gm.graph.erase_node(node)
            merged += 1
        return PassResult(gm, changed=merged > 0, count=merged)


def _checked(graph: fx.Graph) -> set[fx.Node]:
    """The numbers that checks are made of: a check may be what makes two of them equal expressions."""
    found: set[fx.Node] = set()
    stack = graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in found and isinstance(
                source.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)
            ):
                found.add(source)
                stack.append(source)
    return found


def _write_literal(node: fx.Node, value: Any) -> int:
    """Replace the node by a number in its readers' arguments; outputs of the graph stay nodes."""
    written = 0
    for user in list(node.users):
        if user.op == "call_function":
            user.args = fx.map_arg(user.args, lambda n: value if n is node else n)
            user.kwargs = fx.map_arg(user.kwargs, lambda n: value if n is node else n)
            written += 1
    return written
