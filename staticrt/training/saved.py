"""Saved activations that are views of inputs or results.

Views that the runtime makes have version counters of their own. A saved view must share its base's counter; otherwise
autograd would not notice that the base was written in place before the backward.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.quick_graph import copied
from staticrt.graphs.storage import like_bits
from staticrt.ops import facts_of_call
from staticrt.training.undefined import without_gradients


@dataclasses.dataclass(frozen=True)
class SavedAlias:
    """A saved output that may be a view of an input or of a result.

    Args:
        output: its index.
        base: index of its base among the inputs or the outputs.
        of_input: whether the base is an input.
    """

    output: int
    base: int
    of_input: bool

    def renewed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The saved output, as a view made by autograd if it is a view."""
        saved, base = outputs[self.output], (inputs if self.of_input else outputs)[self.base]
        if saved is base or saved.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
            return saved
        base = like_bits(base, base)  # neither conjugate nor negative: it undoes its own
        if saved.dtype != base.dtype:
            whole = base.as_strided((base.untyped_storage().nbytes() // base.dtype.itemsize,), (1,), 0)
            base = whole.view(saved.dtype)
        return like_bits(base.as_strided(saved.size(), saved.stride(), saved.storage_offset()), saved)


def saved_aliases(graph: fx.GraphModule, num_results: int) -> list[SavedAlias]:
    """The saved outputs (from `num_results` on) that view an input or an earlier output."""
    outputs: Any = graph.graph.output_node().args[0]
    roots: dict[fx.Node, tuple[int, bool]] = {}
    for index, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        roots[node] = (index, True)
    for index, item in enumerate(outputs[:num_results]):
        if isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor):
            # AOTAutograd gives the owner beside several views of it, and makes the callers' views of the owner.
            if item is _root(item) and item.op == "call_function":
                roots[item] = (index, False)
            roots.setdefault(_root(item), (index, False))
    found = []
    for index, item in enumerate(outputs[num_results:], num_results):
        if not isinstance(item, fx.Node) or item.op != "call_function" or _root(item) not in roots:
            continue
        base, of_input = roots[_root(item)]
        if isinstance(item.meta.get("val"), torch.Tensor) and (of_input or outputs[base] is not item):
            found.append(SavedAlias(index, base, of_input))
    return found


def shared_results(joint: fx.GraphModule, num_results: int) -> list[tuple[int, int]]:
    """Pairs of results that share memory through view operators, the smaller index first."""
    outputs: Any = joint.graph.output_node().args[0]
    first: dict[fx.Node, int] = {}
    found = []
    for index, item in enumerate(outputs[:num_results]):
        if isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor):
            earlier = first.setdefault(_root(item), index)
            if earlier != index:
                found.append((earlier, index))
    return found


def lost_aliases(shared: Sequence[tuple[int, int]], metadata: Any) -> str:
    """The result that AOTAutograd treats as fresh although it views a written input; "" if there is none.

    Args:
        shared: what `shared_results` returned.
        metadata: upstream's `ViewAndMutationMeta`.
    """
    # The first outputs are the new values of written inputs.
    written = len(metadata.mutated_inp_runtime_indices)
    for one, other in shared:
        if one >= written or not written <= other < written + len(metadata.output_info):
            continue
        if metadata.output_info[other - written].output_type.name == "non_alias":
            return f"result {other - written} is one of several views of a written input"
    return ""


def merged_inputs(inputs: Sequence[Any], metadata: Any) -> str:
    """Why a region that writes memory which several inputs share runs eagerly; "" if it does not.

    AOTAutograd passes one tensor in their place; its views and gradients may differ from eager's.

    Args:
        inputs: the region's example inputs.
        metadata: upstream's `ViewAndMutationMeta`.
    """
    is_merged = len(metadata.input_info) < len(inputs)
    return "it writes memory that several of its inputs share" if is_merged else ""


class SharedReads:
    """Which backwards of a region read saved values that its callers can write: inputs, results, views of either.

    Args:
        forward, backward: its graphs; the backward must not be changed afterwards.
        num_results: the forward's outputs from this index on are saved.
    """

    def __init__(self, forward: fx.GraphModule, backward: fx.GraphModule, num_results: int) -> None:
        self._backward = backward
        outputs: Any = forward.graph.output_node().args[0]
        owned = {_root(node) for node in outputs[:num_results] if isinstance(node, fx.Node)}
        owned.update(forward.graph.find_nodes(op="placeholder"))
        nodes = [node for node in outputs[num_results:] if isinstance(node, fx.Node)]
        self._shared = {node.name for node in nodes if _is_tensor(node) and _root(node) in owned}
        placeholders = backward.graph.find_nodes(op="placeholder")
        self._tangents = [i for i, node in enumerate(placeholders) if torch_private.is_tangent(node)]
        kept = {node.name for node in placeholders if not torch_private.is_tangent(node)}
        self._is_known = kept == {node.name for node in nodes}
        self._answers: dict[tuple[bool, ...], bool] = {}

    def without(self, undefined: Sequence[bool]) -> bool:
        """Whether a backward in which these gradients are undefined reads none of them."""
        if not self._is_known or len(undefined) != len(self._tangents):
            return False
        key = tuple(undefined)
        if key not in self._answers:
            graph = copied(self._backward)
            without_gradients(graph, [i for i, absent in zip(self._tangents, key, strict=True) if absent])
            read = {node.name for node in graph.graph.find_nodes(op="placeholder") if node.users}
            self._answers[key] = self._shared.isdisjoint(read)
        return self._answers[key]


def _is_tensor(node: fx.Node) -> bool:
    """Sizes are saved too; nobody writes them."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def _root(node: fx.Node) -> fx.Node:
    """The node that owns the memory of `node`."""
    while node.op == "call_function":
        source: Any = None
        if node.target is operator.getitem:
            source = node.args[0]
        elif isinstance(node.target, torch._ops.OpOverload):
            aliases = facts_of_call(node.target, node.args, node.kwargs).aliases
            if aliases and aliases[0].arg < len(node.args):
                source = node.args[aliases[0].arg]
        if not isinstance(source, fx.Node) or isinstance(source.meta.get("val"), (int, torch.SymInt)):
            return node
        if node.target is operator.getitem and not _is_view(source):
            return node  # the items of several results own their memory
        node = source
    return node


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return bool(facts_of_call(node.target, node.args, node.kwargs).aliases)
