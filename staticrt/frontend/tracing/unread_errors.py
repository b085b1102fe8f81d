"""Operators whose results are not read, but which may raise.

Eager raises the error of `x[i]` whether or not anything is done with the result. So nodes of such operators are marked,
and stay. A node that becomes unread because a pass replaced its reader is not marked: the pass guarantees the result.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from staticrt.frontend.tracing.tracer import BACKWARD
from staticrt.ops import facts_of_call
from staticrt.ops.raising import MAY_RAISE, may_raise
from staticrt.ops.refused_dtypes import refuses_dtypes
from staticrt.shapes.fake_results import is_contiguous
from staticrt.shapes.size_checks import env_of

# These read no element of their first argument.
_READ_SIZES = frozenset(
    ("empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_full", "new_ones", "new_zeros")
)


def mark(graph: fx.Graph) -> None:
    """Mark the nodes of a finished graph that must run for their errors alone."""
    read: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node not in read:
            if _may_raise(node):
                node.meta[MAY_RAISE] = True
            elif facts_of_call(node.target, node.args, node.kwargs).pure:
                if not _refused(node):
                    continue
                node.meta[MAY_RAISE] = True
        elif node.op not in ("call_function", "output"):
            continue
        unread = _unread(node)
        read.update(source for source in node.all_input_nodes if source is not unread)


def _may_raise(node: fx.Node) -> bool:
    return (
        isinstance(node.target, OpOverload)
        and BACKWARD not in node.meta
        and not node.target._schema.is_mutable
        and (may_raise(node.target, node.meta.get("val")) or _lies_as_guessed(node))
    )


def _refused(node: fx.Node) -> bool:
    """Whether eager refuses the dtypes of the node's arguments."""
    if not isinstance(node.target, OpOverload) or BACKWARD in node.meta or node.target._schema.is_mutable:
        return False
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
    return refuses_dtypes(node.target, args, kwargs, node.meta.get("val"))


def _lies_as_guessed(node: fx.Node) -> bool:
    """Whether a view is of a result whose strides ShapeEnv may have wrong: it does not ask how sizes compare."""
    if node.target is not torch.ops.aten.view.default:
        return False
    source = node.args[0]
    while isinstance(source, fx.Node) and source.op == "call_function":
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or not any(
            isinstance(step, torch.SymInt) and env_of(step) is None for step in value.stride()
        ):
            return False
        operands = [each.meta.get("val") for each in source.all_input_nodes]
        tensors = [each for each in operands if isinstance(each, torch.Tensor)]
        if not tensors or tensors[0].untyped_storage()._cdata != value.untyped_storage()._cdata:
            return not all(map(is_contiguous, tensors))
        source = source.args[0]
    return False


def _unread(node: fx.Node) -> fx.Node | None:
    """An argument of which only the sizes are read."""
    if isinstance(node.target, OpOverload) and node.target._opname in _READ_SIZES and node.args:
        first = node.args[0]
        return first if isinstance(first, fx.Node) else None
    return None
