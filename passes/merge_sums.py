"""Compute a sum of small products as one product.

    mm(a1, b1) + mm(a2, b2) + mm(a3, b3)   ->   mm(cat([a1, a2, a3], 1), cat([b1, b2, b3], 0))

The gradient of a weight that is used at every time step is such a sum. Each product is as large as the weight, although
its operands have only as many rows as the batch.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, Tolerance, output_nodes, register_pass, tensor_meta
from staticrt.passes.canonical_views import PERMUTE, PERMUTING, VIEW, permutation
from staticrt.passes.rewrite import insert_call
from staticrt.passes.symbols import same_meta

aten = torch.ops.aten
ADD = aten.add.Tensor
CAT = aten.cat.default
MM = aten.mm.default


@register_pass
class MergeSums(GraphPass):
    """Merge products that are only added up, where their operands are smaller than they are.

    The operands live until the last product of a group can be computed. A group is as large as leaves the most bytes that
    live at one time as they were: all products of a sum, else half of them, and so on.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the order of accumulation, with the strides they had.
    """

    name = "merge-sums"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        if len(gm.graph.find_nodes(op="call_function", target=MM)) < 2:
            return PassResult(gm, changed=False)
        sums = _sums(gm)
        if not sums:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        load = _Load(gm, aliases)
        count = sum(_merge(each, aliases, load) for each in sums)
        return PassResult(gm, changed=count > 0, count=count)


@dataclasses.dataclass(frozen=True)
class _Term:
    """A product that is read once: by an addition, through views."""

    product: fx.Node
    views: tuple[fx.Node, ...]  # from the product on

    @property
    def read(self) -> fx.Node:
        return self.views[-1] if self.views else self.product


@dataclasses.dataclass(frozen=True)
class _Sum:
    """Products that are added up, perhaps with other values.

    Args:
        additions: the last one comes first.
        terms: the products, read through the same views, in the graph's order.
    """

    additions: list[fx.Node]
    terms: list[_Term]


def _sums(gm: fx.GraphModule) -> list[_Sum]:
    """Sums of two or more products, in the graph's order."""
    position = {node: index for index, node in enumerate(gm.graph.nodes)}
    inner: set[fx.Node] = set()
    found = []
    for root in reversed(gm.graph.find_nodes(op="call_function", target=ADD)):
        if root in inner or not _adds_alike(root):
            continue
        additions, leaves, stack = [], [], [root]
        while stack:
            node = stack.pop()
            if node is root or (len(node.users) == 1 and _adds_alike(node)):
                additions.append(node)
                stack += node.all_input_nodes
            else:
                leaves.append(node)
        inner.update(additions)
        by_views: dict[Any, list[_Term]] = {}
        for leaf in leaves:
            term = _term(leaf)
            if term is not None:
                key = str([(view.target, view.args[1:]) for view in term.views])
                by_views.setdefault(key, []).append(term)
        terms = max(by_views.values(), key=len, default=[])
        if len(terms) > 1:
            terms.sort(key=lambda term: position[term.product])
            found.append(_Sum(additions, terms))
    return found[::-1]


def _adds_alike(node: fx.Node) -> bool:
    """Whether it adds two floating-point tensors of its own sizes and strides."""
    whole = tensor_meta(node)
    if node.target is not ADD or node.kwargs or len(node.all_input_nodes) != 2 or whole is None:
        return False
    metas = [tensor_meta(source) for source in node.all_input_nodes]
    return whole.is_floating_point() and all(meta is not None and same_meta(meta, whole) for meta in metas)


def _term(leaf: fx.Node) -> _Term | None:
    views: list[fx.Node] = []
    node = leaf
    while len(node.users) == 1 and (node.target is VIEW or node.target in PERMUTING):
        views.append(node)
        source: Any = node.args[0]
        node = source
    if node.target is not MM or len(node.users) != 1:
        return None
    is_small = sum(map(_bytes, node.all_input_nodes)) <= _bytes(node)
    return _Term(node, tuple(reversed(views))) if is_small else None


def _merge(found: _Sum, aliases: AliasInfo, load: _Load) -> int:
    """Rewrite a sum; the number of products that went into others."""
    operands = [node for term in found.terms for node in term.product.all_input_nodes]
    if any(aliases.is_written(node) for node in (*operands, *found.additions)):
        return 0
    groups = _groups(found, load)
    if len(groups) == len(found.terms):
        return 0
    whole: fx.Node | None = None
    for group in groups:
        product = _product(group)
        whole = product if whole is None else insert_call(group[-1].product, ADD, (whole, product))
    root = found.additions[0]
    for view in found.terms[0].views:
        whole = insert_call(root, view.target, (whole, *view.args[1:]))
    rest: dict[fx.Node, fx.Node | None] = {term.read: None for term in found.terms}  # without the terms
    for addition in reversed(found.additions):
        one, two = (rest.get(node, node) for node in addition.all_input_nodes)
        rest[addition] = one or two
        if one is not None and two is not None:
            rest[addition] = addition
            addition.args = (one, two)
    others = rest[root]
    if others is root:
        others = insert_call(root, ADD, root.args)
    if others is not None:
        whole = insert_call(root, ADD, (whole, others))
    root.replace_all_uses_with(whole)
    for node in found.additions:
        if not node.users:
            node.graph.erase_node(node)
    for term in found.terms:
        for node in (*reversed(term.views), term.product):
            node.graph.erase_node(node)
    return len(found.terms) - len(groups)


def _groups(found: _Sum, load: _Load) -> list[list[_Term]]:
    """The terms, by the product that computes them; each alone where no more fit."""
    terms = found.terms
    size = len(terms)
    while size > 1:
        groups = [terms[i : i + size] for i in range(0, len(terms), size)]
        if load.take(found, groups):
            return groups
        size = (size + 1) // 2
    return [[term] for term in terms]


def _product(group: Sequence[_Term]) -> fx.Node:
    """One product in place of several, where the last of them is computed."""
    last = group[-1].product
    if len(group) == 1:
        return insert_call(last, MM, last.args)
    left, right = zip(*(term.product.args for term in group), strict=True)
    if all(node.target in PERMUTING and permutation(node) == [1, 0] for node in left):
        rows = insert_call(last, CAT, ([node.args[0] for node in left], 0))
        columns = insert_call(last, PERMUTE, (rows, [1, 0]))
    else:
        columns = insert_call(last, CAT, (list(left), 1))
    return insert_call(last, MM, (columns, insert_call(last, CAT, (list(right), 0))))


class _Load:
    """An estimate of the bytes that live while each node runs, for the sizes of the traced call.

    Args:
        aliases: of the graph as it is.
    """

    def __init__(self, gm: fx.GraphModule, aliases: AliasInfo) -> None:
        self._storage = aliases.storage
        self._position = {node: index for index, node in enumerate(gm.graph.nodes)}
        count = len(self._position)
        self._begin: dict[Any, int] = {}
        self._end: dict[Any, int] = {}
        held: dict[Any, int] = {}
        for node, index in self._position.items():
            key = self._storage(node)
            self._begin.setdefault(key, 0 if node.op == "placeholder" else index)
            held[key] = max(held.get(key, 0), _bytes(node))
            last = index + (node.target is not ADD)  # a sum lies in the bytes of one of its terms
            for source in node.all_input_nodes:
                self._end[self._storage(source)] = last
        for node in output_nodes(gm):
            self._end[self._storage(node)] = count
        changes = [0] * (count + 1)
        for key, size in held.items():
            changes[self._begin[key]] += size
            changes[self._end.get(key, self._begin[key] + 1)] -= size
        self._load = list(accumulate(changes))
        self._most = max(self._load)

    def take(self, found: _Sum, groups: Sequence[Sequence[_Term]]) -> bool:
        """Merge the terms of each group, if the most bytes at one time do not grow."""
        changes = [0] * len(self._load)

        def add(size: int, begin: int, end: int) -> None:
            if begin < end:
                changes[begin] += size
                changes[end] -= size

        root = self._position[found.additions[0]]
        whole = _bytes(found.terms[0].product)
        # What else is added stays a sum of its own.
        sums = found.additions[1:] if len(found.terms) > len(found.additions) else []
        for node in (*sums, *(term.product for term in found.terms)):
            key = self._storage(node)
            add(-whole, self._begin[key], self._end[key])
        ends: dict[Any, int] = {}
        first = self._position[groups[0][-1].product]
        add(whole, first, root)
        for group in groups:
            at = self._position[group[-1].product]
            for operand in [node for term in group for node in term.product.all_input_nodes]:
                key = self._storage(operand)
                if len(group) > 1:
                    add(_bytes(operand), at, at + 1)  # in the concatenation
                end = ends.get(key, self._end.get(key, at))
                add(_bytes(operand), end, at + 1)
                ends[key] = max(end, at + 1)
            if at > first:
                add(whole, at, at + 1)
        load = list(map(operator.add, self._load, accumulate(changes)))
        if max(load) > self._most:
            return False
        self._load = load
        self._end.update(ends)
        return True


def _bytes(node: fx.Node) -> int:
    """What a tensor occupies at the sizes of the traced call; 0 where data decides them."""
    value = tensor_meta(node)
    if value is None or value.layout != torch.strided:
        return 0
    last = 0
    for pair in zip(value.shape, value.stride(), strict=True):
        size, stride = (each.node.hint if isinstance(each, torch.SymInt) else each for each in pair)
        if not isinstance(size, int) or not isinstance(stride, int) or size == 0:
            return 0
        last += (size - 1) * stride
    return (last + 1) * value.element_size()
