"""Make the gradient of a tensor that is read in pieces from the gradients of the pieces.

    select_backward(a, sizes, d, 0) + select_backward(b, sizes, d, 1)   ->   stack([a, b], d)

So autograd computes the gradient of packed queries, keys and values, and of a sequence whose steps are selected one by one.
Each of its terms is as large as the whole, and all zeros but for one piece.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.effects import argument
from staticrt.passes.rewrite import insert_call, replace_if_same
from staticrt.passes.symbols import same_meta

aten = torch.ops.aten
ADD = aten.add.Tensor
SELECT = aten.select_backward.default
SLICE = aten.slice_backward.default


@register_pass
class JoinGradients(GraphPass):
    """Join pieces that do not overlap; several gradients of one piece are added before, what lies between pieces is 0.

    Half precision is left alone: eager rounds each sum. A zero may have another sign than eager's, which adds zeros to it.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the rounding of a sum, with the strides they had.
    """

    name = "join-gradients"
    tolerance = Tolerance(rtol=1e-5, atol=1e-6)

    def run(self, gm: fx.GraphModule) -> PassResult:
        pieces = list(each_node(gm, (SELECT, SLICE)))
        if len(pieces) < 2:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        sums = {sum_of: None for piece in pieces if (sum_of := _sum_of(piece)) is not None}
        count = sum(_join(node, aliases) for node in sums)
        return PassResult(gm, changed=count > 0, count=count)


def _sum_of(node: fx.Node) -> fx.Node | None:
    """The whole sum that a term is part of; None: it is none."""
    found = None
    while len(node.users) == 1 and _is_sum(user := next(iter(node.users))):
        node = found = user
    return found


def _is_sum(node: fx.Node) -> bool:
    """Whether it adds two tensors of its own dtype, sizes and strides."""
    whole = tensor_meta(node)
    if (
        node.target is not ADD
        or node.kwargs
        or whole is None
        or whole.dtype not in (torch.float32, torch.float64)
    ):
        return False
    metas = [tensor_meta(arg) for arg in node.args if isinstance(arg, fx.Node)]
    return len(metas) == 2 and all(meta is not None and same_meta(meta, whole) for meta in metas)


def _terms(node: fx.Node) -> list[fx.Node]:
    """The terms of a sum from left to right, each sum in it that nothing else reads taken apart."""
    terms, stack = [], [node]
    while stack:
        term = stack.pop()
        if term is node or (len(term.users) == 1 and _is_sum(term)):
            stack += reversed(term.args)  # type: ignore[arg-type]
        else:
            terms.append(term)
    return terms


def _join(node: fx.Node, aliases: AliasInfo) -> bool:
    terms = _terms(node)
    by_dim: dict[int, dict[tuple[int, int], list[fx.Node]]] = {}
    for term in terms:
        piece = _piece(term) if len(term.users) == 1 else None
        if piece is not None and not aliases.is_written(term.args[0]):  # type: ignore[arg-type]
            dim, first, end = piece
            by_dim.setdefault(dim, {}).setdefault((first, end), []).append(term)
    dim, found = max(by_dim.items(), key=lambda item: len(item[1]), default=(0, {}))
    bounds = sorted(found)
    if len(bounds) < 2 or any(a[1] > b[0] for a, b in itertools.pairwise(bounds)):
        return False
    joined = _joined(node, dim, [(*each, found[each]) for each in bounds])
    taken = {term for each in found.values() for term in each}
    rest = [term for term in terms if term not in taken]
    return replace_if_same(node, _sum(node, [*rest, joined]))


def _piece(term: fx.Node) -> tuple[int, int, int] | None:
    """The dim of a piece, where it begins, and where it ends; None: the term is no piece with known bounds."""
    whole = tensor_meta(term)
    if term.target not in (SELECT, SLICE) or whole is None or type(argument(term, 2)) is not int:
        return None
    dim = argument(term, 2) % whole.dim()
    size, first = whole.shape[dim], argument(term, 3)
    if type(size) is not int or type(first) is not int:
        return None
    if term.target is SELECT:
        first %= size
        return dim, first, first + 1
    end = argument(term, 4)
    if type(end) is not int or argument(term, 5) != 1:
        return None
    first, end = (min(bound + size if bound < 0 else bound, size) for bound in (first, end))
    return (dim, first, end) if 0 <= first < end else None


def _joined(node: fx.Node, dim: int, pieces: Sequence[tuple[int, int, list[fx.Node]]]) -> fx.Node:
    """A tensor of gradients of pieces, each from its first to its last index, and of zeros between them."""
    whole = tensor_meta(node)
    assert whole is not None
    sizes: Any = pieces[0][2][0].args[1]
    size = int(whole.shape[dim])
    is_whole = [0, *(end for _first, end, _terms in pieces)] == [*(first for first, *_ in pieces), size]
    is_stack = is_whole and all(term.target is SELECT for *_, terms in pieces for term in terms)
    parts: list[Any] = []
    at = 0
    for first, end, terms in (*pieces, (size, size, [])):
        if first > at:
            shape = [*sizes[:dim], first - at, *sizes[dim + 1 :]]
            kind = {"dtype": whole.dtype, "layout": whole.layout, "device": whole.device}
            parts.append(insert_call(node, aten.zeros.default, (shape,), kind))
        at = end
        gradients: list[Any] = [
            term.args[0]
            if is_stack or term.target is SLICE
            else insert_call(node, aten.unsqueeze.default, (term.args[0], dim))
            for term in terms
        ]
        if gradients:
            parts.append(_sum(node, gradients))
    return insert_call(node, aten.stack.default if is_stack else aten.cat.default, (parts, dim))


def _sum(node: fx.Node, terms: Sequence[fx.Node]) -> fx.Node:
    return functools.reduce(lambda a, b: insert_call(node, ADD, (a, b)), terms)
