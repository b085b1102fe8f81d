"""Which values of a graph may share storage, what writes it, and what reaches the outputs.

Note [Outputs belong to the caller]: a rewrite must leave the aliases among a graph's inputs and outputs
as they were. Where eager returns a fresh tensor, a rewrite may not return an input, a constant, or a
view of another output instead: the caller may write into what it got. `AliasInfo.may_replace` decides.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from staticrt.ops import OpFacts
from staticrt.passes.base import output_nodes
from staticrt.passes.effects import argument, may_keep_arguments, node_facts, written_nodes

aten = torch.ops.aten
# Operators that read a storage outside the elements of their argument, or that return the storage offset.
READ_PLACES = frozenset({
    aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default,
    aten.sym_storage_offset.default, aten.view_as_complex.default, aten.view_as_complex_copy.default,
    aten.view.dtype, aten.view_copy.dtype,
})  # fmt: skip


class AliasInfo:
    """Alias classes of one graph, as it is when this is made. O(nodes), apart from union-find's α.

    Conservative: values in different classes never share storage, values in one class may. A result of
    a node with several outputs has its own class where the op's facts say that it is fresh.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self._parent: dict[Any, Any] = {}
        self._items: dict[tuple[fx.Node, Any], object] = {}  # one key for all reads of one result
        self._order: dict[fx.Node, int] = {}
        self._writes: dict[Any, list[int]] = {}
        self._sources: dict[fx.Node, list[fx.Node]] = {}
        self._flows: set[fx.Node] = set()
        self._outputs = output_nodes(gm)
        self._external: set[Any] = set()
        self._placed: set[Any] = set()  # storages that a READ_PLACES node reads
        self._same: dict[fx.Node, fx.Node] = {}  # node -> earlier node that may return the same tensor object
        writes: list[tuple[int, fx.Node]] = []
        placed: list[fx.Node] = []  # nodes whose storage offset another node depends on
        has_bodies = bool(gm.graph.find_nodes(op="get_attr"))
        for index, node in enumerate(gm.graph.nodes):
            self._order[node] = index
            if node.op in ("placeholder", "get_attr", "output"):
                self._sources[node] = []
                continue
            known = node_facts(node)
            sources = self._sources[node] = self._alias_sources(node, known)
            for source in sources:
                self._union(node, source)
            if len(sources) == 1 and _may_return_itself(known):
                self._same[node] = self._tensor(sources[0])
            if node.target is operator.getitem:
                if isinstance(node.args[0], fx.Node):
                    self._union(node, self._items.setdefault((node.args[0], node.args[1]), object()))
                continue
            # An operator that keeps an argument may write it at any time.
            if may_keep_arguments(node, has_bodies):
                writes += [(index, each) for each in node.all_input_nodes]
            elif known.mutates:
                writes += [(index, each) for each in written_nodes(node)]
            if node.target in READ_PLACES:
                placed += node.all_input_nodes
        for index, written in writes:
            self._writes.setdefault(self.storage(written), []).append(index)
        self._placed |= {self.storage(node) for node in placed}
        self._external |= {self.storage(n) for n in gm.graph.nodes if n.op in ("placeholder", "get_attr")}
        self._direct = {self._tensor(n) for n in self._outputs}
        self._add_flows(self._outputs)

    def _add_flows(self, nodes: list[fx.Node]) -> None:
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node not in self._flows:
                self._flows.add(node)
                pending += self._sources.get(node, [])

    def _tensor(self, node: fx.Node) -> fx.Node:
        """The node that stands for the Python tensor of `node`: `x.add_(1)` returns x itself."""
        return self._same.get(node, node)

    def storage(self, node: fx.Node) -> Any:
        """A key that two nodes have in common if they may share storage."""
        root: Any = node
        while self._parent.get(root, root) is not root:
            root = self._parent[root]
        while self._parent.get(node, root) is not root:
            self._parent[node], node = root, self._parent[node]
        return root

    def is_written(self, node: fx.Node) -> bool:
        """Whether any node writes the storage of `node`, at any time, or passes it to an operator that may."""
        return self.storage(node) in self._writes

    def writes_before(self, node: fx.Node, at: fx.Node) -> int:
        """The number of nodes before `at` that write the storage of `node`."""
        writes = self._writes.get(self.storage(node))
        return sum(index < self._order[at] for index in writes) if writes else 0

    def is_external(self, node: fx.Node) -> bool:
        """Whether `node` may share storage with an input or a constant."""
        return self.storage(node) in self._external

    def reaches_output(self, node: fx.Node) -> bool:
        """Whether an output of the graph may share `node`'s storage."""
        return node in self._flows

    def is_output(self, node: fx.Node) -> bool:
        """Whether the graph may return this tensor object."""
        return self._tensor(node) in self._direct

    def detaches_a_result(self, node: fx.Node) -> bool:
        """Whether a result views an input through this `detach`, so that autograd does not treat it as a view."""
        is_detach = node.target is torch.ops.aten.detach.default
        return is_detach and self.is_external(node) and self.reaches_output(node)

    def may_replace(self, old: fx.Node, new: fx.Node) -> bool:
        """Whether every reader of `old` may read `new` instead, an equal value that was there before.

        If `old` is a view of `new`'s storage, only the identity of returned tensors is at stake. If
        `old` is a copy, no node may write either or read its storage offset, and the caller may not get both
        (see Note [Outputs belong to the caller]).
        """
        if self.is_output(old) and (
            self._tensor(new).op in ("placeholder", "get_attr") or self.is_output(new)
        ):
            return False
        if self._surely_views(old, new):
            return True
        if self.is_written(old) or self.is_written(new):
            return False
        if self.storage(old) in self._placed:  # another storage has other bytes around the elements
            return False
        if not self.reaches_output(old):
            return True
        return not self.is_external(new) and not self._storage_reaches_output(new, besides=old)

    def replaced(self, old: fx.Node, new: fx.Node) -> None:
        """Update the classes after `new` replaced all uses of `old`."""
        self._union(old, new)
        self._sources[old] = [new]
        if old in self._flows:
            self._add_flows([new])
        if self.is_output(old):
            self._direct.add(self._tensor(new))
        self._same[old] = self._tensor(new)

    def _surely_views(self, old: fx.Node, new: fx.Node) -> bool:
        """Whether `old` is a chain of ops on `new` that are views in every call."""
        node = old
        while node is not new:
            if len(self._sources[node]) != 1 or not node_facts(node).is_view:
                return False
            node = self._sources[node][0]
        return True

    def _storage_reaches_output(self, node: fx.Node, besides: fx.Node) -> bool:
        root = self.storage(node)
        return any(n is not besides and self.storage(n) == root for n in self._flows)

    def _union(self, a: Any, b: Any) -> None:
        root_a, root_b = self.storage(a), self.storage(b)
        if root_a is root_b:
            return
        self._parent[root_b] = root_a
        self._writes.setdefault(root_a, []).extend(self._writes.pop(root_b, []))
        if not self._writes[root_a]:
            del self._writes[root_a]
        for marked in (self._external, self._placed):
            if root_b in marked:
                marked.add(root_a)

    def _alias_sources(self, node: fx.Node, known: OpFacts) -> list[fx.Node]:
        """The nodes whose storage a call itself may share."""
        if node.target is operator.getitem:
            return self._item_sources(node)
        if not known.aliases and isinstance(node.target, OpOverload):
            return []
        if not holds_tensors(node):
            return []
        if not isinstance(node.target, OpOverload):
            # A body may return its arguments.
            return [n for n in node.all_input_nodes if holds_tensors(n)]
        return _aliased(node, known, None)

    def _item_sources(self, node: fx.Node) -> list[fx.Node]:
        source, index = node.args
        if not isinstance(source, fx.Node):
            return []
        target = source.target
        if isinstance(target, HigherOrderOperator) or not isinstance(target, OpOverload):
            return [source]
        returns = target._schema.returns
        if len(returns) == 1 or not isinstance(index, int):
            return [source]  # an element of a list
        known = node_facts(source)
        return _aliased(source, known, index % len(returns))


def _may_return_itself(known: OpFacts) -> bool:
    """In-place ops return their argument; `contiguous` and `to` do where there is nothing to do."""
    return bool(known.mutates and known.aliases) or known.may_alias


def _aliased(node: fx.Node, known: OpFacts, output: int | None) -> list[fx.Node]:
    """Arguments whose storage result `output` may share; with None, that of any result of a list."""
    single = isinstance(node.target, OpOverload) and len(node.target._schema.returns) == 1
    found: list[fx.Node] = []
    for alias in known.aliases:
        if (output is None and single) or alias.output == output:
            given = argument(node, alias.arg)
            for each in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(each, fx.Node) and holds_tensors(each):
                    found.append(each)
    return found


def holds_tensors(node: fx.Node) -> bool:
    """Whether the node's value is, or may contain, a tensor."""
    value = node.meta.get("val", node)
    if isinstance(value, (list, tuple)):
        return any(isinstance(v, torch.Tensor) for v in value) or not value
    return value is node or isinstance(value, torch.Tensor)
