"""Simplify `cat`, `stack`, `split` and `slice` of each other.

cat([cat([a, b]), c])            ->  cat([a, b, c])          each element is copied once
cat([stack([a, b]), c])          ->  cat([a[None], b[None], c])
cat(split(x)), stack(unbind(x))  ->  x
split(x, 1, d)[i].squeeze(d)     ->  select(x, d, i)         no list of views in between
slice(slice(x))                  ->  slice(x)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, each_node, register_pass, tensor_meta
from staticrt.passes.effects import argument
from staticrt.passes.rewrite import insert_call, replace_if_same
from staticrt.passes.symbols import known_equal, same_meta, same_place

aten = torch.ops.aten
CAT = aten.cat.default
STACK = aten.stack.default
SPLITS = frozenset({aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default})
UNBIND = aten.unbind.int
SELECT = aten.select.int
SLICE = aten.slice.Tensor
SQUEEZE = frozenset({aten.squeeze.dim, aten.squeeze.dims})
# The `end` of a `slice` up to the end.
END = 2**63 - 1


@register_pass
class MergePieces(GraphPass):
    """Flatten `cat`, undo `split`, read single pieces as views of the whole.

    An inner `cat` or `stack` is merged only if it has no other reader, and all parts have one dtype and rank: `cat`
    promotes step by step, and ignores empty vectors among tensors of other ranks.

    Requires: ATen-level graph.
    Ensures:  outputs, their aliases and strides as before, bit by bit.
    """

    name = "merge-pieces"

    def run(self, gm: fx.GraphModule) -> PassResult:
        found = list(each_node(gm, [CAT, STACK, SLICE, *SQUEEZE]))
        if not found:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        count = 0
        for node in found:
            if node.target is CAT:
                while _flatten(node, aliases):
                    count += 1
            if node.target in (CAT, STACK):
                count += _undo(node, aliases)
            elif node.target is SLICE:
                count += _merge_slices(node)
            else:
                count += _select_piece(node)
        return PassResult(gm, changed=count > 0, count=count)


def _parts(node: fx.Node) -> list[fx.Node] | None:
    parts = node.args[0]
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, fx.Node) for p in parts):
        return None
    return list(parts)  # type: ignore[arg-type]


def _dim(node: fx.Node, position: int, rank: int) -> int | None:
    """Argument `position`, a dim of a tensor of `rank` dims, counted from the front."""
    dim = argument(node, position, 0)
    return dim % rank if type(dim) is int and rank > 0 else None


def _flatten(node: fx.Node, aliases: AliasInfo) -> bool:
    """Replace one inner `cat` or `stack` along the same dim by its parts."""
    parts, whole = _parts(node), tensor_meta(node)
    if parts is None or whole is None or not _alike(parts, whole):
        return False
    dim = _dim(node, 1, whole.dim())
    for at, part in enumerate(parts):
        if part.target not in (CAT, STACK) or len(part.users) != 1 or parts.count(part) != 1:
            continue
        inner = _parts(part)
        if inner is None or dim is None or _dim(part, 1, whole.dim()) != dim:
            continue
        rank = whole.dim() if part.target is CAT else whole.dim() - 1
        if not _alike(inner, whole, rank) or any(aliases.is_written(n) for n in (part, *inner)):
            continue
        if part.target is STACK:
            inner = [insert_call(part, aten.unsqueeze.default, (n, dim)) for n in inner]
        node.args = ([*parts[:at], *inner, *parts[at + 1 :]], *node.args[1:])
        part.graph.erase_node(part)
        return True
    return False


def _alike(parts: Sequence[fx.Node], whole: torch.Tensor, rank: int | None = None) -> bool:
    rank = whole.dim() if rank is None else rank
    metas = [tensor_meta(n) for n in parts]
    return all(m is not None and m.dtype == whole.dtype and m.dim() == rank for m in metas)


def _undo(node: fx.Node, aliases: AliasInfo) -> bool:
    """Replace all pieces of a tensor in their order by the tensor."""
    parts, whole = _parts(node), tensor_meta(node)
    if not parts or whole is None:
        return False
    pieces: Any = parts[0].args[0] if parts[0].target is operator.getitem else None
    if not isinstance(pieces, fx.Node) or not isinstance(pieces.args[0], fx.Node):
        return False
    if not all(p.target is operator.getitem and p.args == (pieces, i) for i, p in enumerate(parts)):
        return False
    listed = pieces.meta.get("val")
    if not isinstance(listed, (list, tuple)) or len(listed) != len(parts):
        return False
    if pieces.target not in (SPLITS if node.target is CAT else {UNBIND}):
        return False
    source = pieces.args[0]
    before = tensor_meta(source)
    if before is None or not same_meta(before, whole):
        return False
    position = 1 if pieces.target is UNBIND else 2
    dim = _dim(pieces, position, before.dim())
    if dim is None or _dim(node, 1, whole.dim()) != dim or not aliases.may_replace(node, source):
        return False
    aliases.replaced(node, source)
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)
    return True


def _select_piece(node: fx.Node) -> bool:
    """split(x, 1, d)[i].squeeze(d) -> select(x, d, i)."""
    piece: Any = node.args[0]
    if not isinstance(piece, fx.Node) or piece.target is not operator.getitem:
        return False
    pieces, index = piece.args
    if not isinstance(pieces, fx.Node) or pieces.target not in SPLITS or type(index) is not int:
        return False
    source: Any = pieces.args[0]
    before, part, after = tensor_meta(source), tensor_meta(piece), tensor_meta(node)
    if before is None or part is None or after is None or after.dim() != before.dim() - 1:
        return False
    dim = _dim(pieces, 2, before.dim())
    squeezed: Any = node.args[1]
    dims = squeezed if isinstance(squeezed, (list, tuple)) else [squeezed]
    if dim is None or [d % before.dim() for d in dims] != [dim]:
        return False
    # Pieces of one element each: element i is piece i.
    if not all(known_equal(p.shape[dim], 1) for p in pieces.meta["val"][: index + 1]):
        return False
    return replace_if_same(node, insert_call(node, SELECT, (source, dim, index)), same_place)


def _merge_slices(node: fx.Node) -> bool:
    """x[a:b][c:d] -> x[a + c : ...], for bounds that are known and not counted from the end."""
    inner: Any = node.args[0]
    before = tensor_meta(inner.args[0]) if isinstance(inner, fx.Node) and inner.target is SLICE else None
    after = tensor_meta(node)
    if before is None or after is None or _dim(node, 1, after.dim()) != _dim(inner, 1, after.dim()):
        return False
    bounds = [argument(n, position) for n in (inner, node) for position in (2, 3, 4)]
    first, first_end, step, second, second_end, second_step = bounds
    first, second = first or 0, second or 0
    first_end, second_end = (END if end is None else end for end in (first_end, second_end))
    if any(type(n) is not int or n < 0 for n in (first, first_end, second, second_end)):
        return False
    if (step, second_step) != (1, 1):
        return False
    end = min(first_end, first + second_end) if second_end != END else first_end
    args = (inner.args[0], argument(node, 1), first + second, max(end, first + second))
    return replace_if_same(node, insert_call(node, SLICE, args), same_place)
