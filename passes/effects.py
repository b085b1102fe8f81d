"""Effects of graph nodes: facts of operators applied to calls, submodules and bodies."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from staticrt import tuning
from staticrt.ops import OpFacts, facts_of_call
from staticrt.ops.raising import MAY_RAISE


def node_facts(node: fx.Node) -> OpFacts:
    """Facts of the call that `node` makes; safe defaults for calls of modules and methods."""
    if node.op != "call_function":
        return _unknown(f"{node.op} {node.target}")
    return facts_of_call(node.target, node.args, node.kwargs)


@functools.lru_cache(maxsize=1024)
def _unknown(name: str) -> OpFacts:
    return OpFacts(name)


def is_pure(node: fx.Node, depth: int = 0) -> bool:
    """Whether `node` may be removed if its results have no readers: no write, no random draw, no effect.

    A node that stays for its error (`MAY_RAISE`) is not pure.
    A placeholder is never pure: passes must keep the graph's signature. A higher-order op is as
    pure as all nodes of its bodies.
    """
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or MAY_RAISE in node.meta:
        return False
    known = node_facts(node)
    if isinstance(node.target, HigherOrderOperator):
        bodies = list(body_graphs(node))
        return (
            known.pure
            and depth < tuning.MAX_BODY_DEPTH
            and bool(bodies)
            and all(
                is_pure(inner, depth + 1)
                for body in bodies
                for inner in body.graph.nodes
                if inner.op not in ("placeholder", "output")
            )
        )
    return known.pure


# Torch's operators and ours return what they keep; as in csrc/program/liveness.cpp.
_RETURN_WHAT_THEY_KEEP = frozenset(
    {"aten", "prims", "staticrt", "staticrt_accelerators", "quantized", "mkldnn", "onednn", "mkl"}
)


def may_keep_arguments(node: fx.Node, has_bodies: bool = True) -> bool:
    """Whether an operator of another library, here or in a body, may put a tensor where its author finds it again.

    Args:
        has_bodies: whether the graph has any.
    """
    if isinstance(node.target, OpOverload) and node.target.namespace not in _RETURN_WHAT_THEY_KEEP:
        return True
    return has_bodies and any(
        may_keep_arguments(inner) for body in body_graphs(node) for inner in body.graph.nodes
    )


def body_graphs(node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that a higher-order op is given, through `get_attr` nodes."""
    for arg in node.all_input_nodes:
        if arg.op == "get_attr":
            module = _attribute(arg)
            if isinstance(module, fx.GraphModule):
                yield module


def _attribute(node: fx.Node) -> Any:
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return owner


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """The values that `node` writes in place, in argument order."""
    positions = node_facts(node).mutates
    written = []
    for position in positions:
        value = argument(node, position)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, fx.Node):
                written.append(item)
    return written


def argument(node: fx.Node, position: int, default: Any = None) -> Any:
    """Argument number `position` of the schema, wherever the call wrote it; else its default."""
    if position < len(node.args):
        return node.args[position]
    if isinstance(node.target, OpOverload):
        schema = node.target._schema.arguments[position]
        if schema.name in node.kwargs:
            return node.kwargs[schema.name]
        if schema.has_default_value():
            return schema.default_value
    return default


def named_argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """Argument `name` of the schema; `default` if the op has no such argument."""
    if isinstance(node.target, OpOverload):
        for position, schema in enumerate(node.target._schema.arguments):
            if schema.name == name:
                return argument(node, position, default)
    return node.kwargs.get(name, default)
