"""Backward graphs for calls in which some incoming gradients are undefined.

Autograd distinguishes an undefined gradient from zeros: inputs that only undefined gradients reach get no gradient, and
nothing is computed for them. Filling in zeros, as AOTAutograd does, is slower, assigns a `.grad` where eager leaves
None, and turns a saved infinity into NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from staticrt import torch_private
from staticrt.shapes.size_expr import Expr

aten = torch.ops.aten

_Known: TypeAlias = dict[str, Callable[[], fx.Node]]


def without_gradients(graph: fx.GraphModule, undefined: Sequence[int]) -> int:
    """Specialise a backward graph, in place, to incoming gradients that are None.

    Every value of a backward graph that depends on incoming gradients is linear in them, so one that depends on
    undefined ones only is zero. Such outputs become None, sums drop such terms, other readers get zeros.

    Args:
        graph: a backward graph; its placeholders stay.
        undefined: indices of the placeholders that will be None.

    Returns:
        The number of nodes that are zero.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    missing = {placeholders[i] for i in undefined}
    zero = _zero_nodes(graph, missing)
    known = _known_sizes(graph, missing)
    replacement: dict[fx.Node, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "output":
            node.args = (
                tuple(None if item in zero else replacement.get(item, item) for item in node.args[0]),
            )
            continue
        if node in zero or node.op != "call_function":
            continue
        other = _other_summand(node, zero)
        if other is not None:
            replacement[node] = _laid_out_like(graph, known, node, replacement.get(other, other))
            node.replace_all_uses_with(replacement[node], propagate_meta=False)
            continue
        for argument in node.all_input_nodes:
            if argument in zero:
                with graph.graph.inserting_before(node):
                    node.replace_input_with(argument, _zeros(graph, known, argument))
    graph.graph.eliminate_dead_code(is_impure_node=_keep)
    graph.recompile()
    return len(zero)


def _zero_nodes(graph: fx.GraphModule, missing: set[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on incoming gradients, but on none that is defined."""
    zero = set(missing)
    defined = {
        node for node in graph.graph.find_nodes(op="placeholder") if torch_private.is_tangent(node)
    } - missing
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        inputs = node.all_input_nodes
        # Of a sum, the other part may be a gradient that a custom autograd Function computes of nothing incoming.
        is_sum = node.target is aten.add.Tensor and not zero.issuperset(inputs)
        if is_sum or any(argument in defined for argument in inputs):
            defined.add(node)
        elif any(argument in zero for argument in inputs):
            zero.add(node)
    return zero


def _other_summand(node: fx.Node, zero: set[fx.Node]) -> fx.Node | None:
    """The other summand of a sum with exactly one zero, if it has the dtype and sizes of the sum."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return None
    other = right if left in zero else left
    ours: Any = node.meta.get("val")
    theirs: Any = other.meta.get("val")
    if (left in zero) == (right in zero) or not isinstance(theirs, torch.Tensor):
        return None
    same = ours.dtype == theirs.dtype and len(ours.shape) == len(theirs.shape)
    return (
        other
        if same and all(str(a) == str(b) for a, b in zip(ours.shape, theirs.shape, strict=True))
        else None
    )


def _laid_out_like(graph: fx.GraphModule, known: _Known, node: fx.Node, other: fx.Node) -> fx.Node:
    """`other`, copied if its strides differ from the sum's, with which the readers were traced."""
    ours: Any = node.meta["val"]
    theirs: Any = other.meta["val"]
    if all(str(a) == str(b) for a, b in zip(ours.stride(), theirs.stride(), strict=True)):
        return other
    with graph.graph.inserting_before(node):
        sizes = [size if isinstance(size, int) else _size(known, size) for size in ours.shape]
        strides = [stride if isinstance(stride, int) else _size(known, stride) for stride in ours.stride()]
        options = {"dtype": ours.dtype, "device": ours.device}
        empty = graph.graph.call_function(aten.empty_strided.default, (sizes, strides), options)
        copied = graph.graph.call_function(aten.copy.default, (empty, other))
    empty.meta["val"] = copied.meta["val"] = ours
    return copied


def _zeros(graph: fx.GraphModule, known: _Known, node: fx.Node) -> fx.Node:
    """Zeros like a node's value, inserted at the graph's insertion point."""
    value: Any = node.meta["val"]
    sizes = [size if isinstance(size, int) else _size(known, size) for size in value.shape]
    zeros = graph.graph.call_function(
        aten.zeros.default, (sizes,), {"dtype": value.dtype, "device": value.device}
    )
    zeros.meta["val"] = value
    return zeros


def _size(known: _Known, size: torch.SymInt) -> fx.Node:
    """A node that computes a symbolic size from the graph's inputs; `known`: see `_known_sizes`."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    text = str(size.node.expr)
    if text in known:
        return known[text]()
    symbols = sorted(size.node.expr.free_symbols, key=str)
    nodes = {symbol: known[str(symbol)]() for symbol in symbols}
    proxies = {symbol: fx.Proxy(node) for symbol, node in nodes.items()}
    if isinstance(size.node.expr, Expr):  # its text is Python's
        names = {str(symbol): proxy for symbol, proxy in proxies.items()}
        proxy = eval(text, {"max": torch.sym_max, "min": torch.sym_min, **names})
    else:
        proxy = sympy_interp(PythonReferenceAnalysis, proxies, size.node.expr)
    assert isinstance(proxy, fx.Proxy)
    for made in _ancestors(proxy.node, set(nodes.values())):
        made.meta.setdefault("val", size)
    return proxy.node


def _known_sizes(graph: fx.GraphModule, missing: set[fx.Node]) -> _Known:
    """Text of a size expression -> function that makes a node with its value.

    The value comes from a placeholder that is not `missing`.
    """
    known: _Known = {}
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            known.setdefault(str(value.node.expr), functools.partial(lambda n: n, node))
        elif isinstance(value, torch.Tensor) and node not in missing:
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    known.setdefault(str(size.node.expr), functools.partial(_size_of, graph, node, dim))
    return known


def _size_of(graph: fx.GraphModule, node: fx.Node, dim: int) -> fx.Node:
    size = graph.graph.call_function(aten.sym_size.int, (node, dim))
    size.meta["val"] = node.meta["val"].shape[dim]
    return size


def _ancestors(node: fx.Node, stop: set[fx.Node]) -> list[fx.Node]:
    found, todo = [], [node]
    while todo:
        current = todo.pop()
        if current not in stop and current not in found:
            found.append(current)
            todo += current.all_input_nodes
    return found


def _keep(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
