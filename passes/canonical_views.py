"""One form for chains of views.

`view(view(x))` is one view; a permutation of a permutation is one or none; `reshape` of a contiguous
tensor is a view, which the planner need not treat as a copy. Later passes then match one form only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from staticrt import tuning
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.effects import node_facts
from staticrt.passes.symbols import known_equal, known_equal_all, same_place

aten = torch.ops.aten
VIEW = aten.view.default
UNSAFE_VIEW = aten._unsafe_view.default
RESHAPE = aten.reshape.default
PERMUTE = aten.permute.default
EXPAND = aten.expand.default
# Marks reshapes that copy if real tensors have other strides than those of the trace.
MAY_COPY = "may_copy"
# They keep the elements' order and only group the sizes anew.
REGROUPING = frozenset(
    {VIEW, UNSAFE_VIEW, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims}
)
PERMUTING = frozenset({PERMUTE, aten.transpose.int, aten.t.default})


@register_pass
class CanonicalViews(GraphPass):
    """Shorten chains of views, and make reshapes views where the strides surely allow it.

    Requires: ATen-level graph.
    Ensures:  every view sees the same elements of the same storage; outputs bitwise equal.
    """

    name = "canonical-views"

    def run(self, gm: fx.GraphModule) -> PassResult:
        aliases = AliasInfo(gm)
        count = 0
        for node in list(gm.graph.nodes):
            if node.op != "call_function" or not isinstance(node.target, OpOverload):
                continue
            count += _reshape_to_view(node)
            if _skip_identity(node, aliases):
                count += 1
                continue
            # What it now reads may be a view too; each merging shortens the chain.
            while _merge_regrouping(node) or _merge_permutes(node) or _merge_expands(node):
                count += 1
        return PassResult(gm, changed=count > 0, count=count)


def _producer(node: fx.Node) -> fx.Node | None:
    source = node.args[0] if node.args else None
    return source if isinstance(source, fx.Node) else None


def _reshape_to_view(node: fx.Node) -> bool:
    if node.target not in (RESHAPE, UNSAFE_VIEW) or MAY_COPY in node.meta:
        return False
    source, after = tensor_meta(_producer(node)), tensor_meta(node)
    if source is None or after is None or not _is_view_of(source, after):
        return False
    node.target = VIEW
    return True


def _is_view_of(source: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether `source` can be viewed with the sizes of `after`, and gets its strides."""
    if _is_static(source) and _is_static(after):
        plain = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        try:
            return plain.view(after.shape).stride() == after.stride()
        except RuntimeError:
            return False
    return _is_contiguous(source) and _is_contiguous(after)


def _is_static(x: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*x.shape, *x.stride()))


def _is_contiguous(x: torch.Tensor) -> bool:
    """Row-major for every input; a size-1 dim has the stride that a new tensor would have."""
    stride: Any = 1
    for size, got in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if not known_equal(stride, got):
            return False
        stride = stride * size
    return True


def _skip_identity(node: fx.Node, aliases: AliasInfo) -> bool:
    """Replace a view by an earlier value of its chain with the same elements, sizes and strides."""
    after = tensor_meta(node)
    source: fx.Node | None = node
    for _ in range(tuning.MAX_VIEW_CHAIN):
        assert source is not None
        known = node_facts(source)
        if not known.is_view or len(known.aliases) != 1 or aliases.detaches_a_result(source):
            return False
        source = _producer(source)
        before = tensor_meta(source)
        if source is None or before is None or after is None:
            return False
        if same_place(before, after) and aliases.may_replace(node, source):
            aliases.replaced(node, source)
            node.replace_all_uses_with(source)
            node.graph.erase_node(node)
            return True
    return False


def _merge_regrouping(node: fx.Node) -> bool:
    """view(view(x)) -> view(x), also through squeeze and unsqueeze."""
    inner = _producer(node)
    if node.target is not VIEW or inner is None or inner.target not in REGROUPING:
        return False
    source, after = tensor_meta(_producer(inner)), tensor_meta(node)
    if source is None or after is None or not _is_view_of(source, after):
        return False
    node.args = (inner.args[0], *node.args[1:])
    return True


def _merge_permutes(node: fx.Node) -> bool:
    inner = _producer(node)
    if node.target not in PERMUTING or inner is None or inner.target not in PERMUTING:
        return False
    first, second = permutation(inner), permutation(node)
    if first is None or second is None:
        return False
    node.target = PERMUTE
    node.args = (inner.args[0], [first[d] for d in second])
    node.kwargs = {}
    return True


def permutation(node: fx.Node) -> list[int] | None:
    """The dims of the argument in the order of the result, for `permute`, `transpose` and `t`."""
    meta = tensor_meta(node)
    if meta is None or node.kwargs:
        return None
    rank = meta.dim()
    if node.target is PERMUTE:
        dims: Sequence[Any] = node.args[1]  # type: ignore[assignment]
        return [d % rank for d in dims]
    order = list(range(rank))
    if node.target is aten.transpose.int:
        a, b = (int(d) % max(rank, 1) for d in node.args[1:3])  # type: ignore[arg-type]
    elif node.target is aten.t.default:
        a, b = 0, rank - 1
    else:
        return None
    if rank:
        order[a], order[b] = order[b], order[a]
    return order


def _merge_expands(node: fx.Node) -> bool:
    """expand(expand(x)) -> expand(x), unless a size is given as "keep" (-1)."""
    inner = _producer(node)
    if node.target is not EXPAND or inner is None or inner.target is not EXPAND:
        return False
    sizes: Sequence[Any] = node.args[1]  # type: ignore[assignment]
    after = tensor_meta(node)
    if after is None or any(isinstance(s, int) and s < 0 for s in sizes):
        return False
    if not known_equal_all(list(sizes), list(after.shape)):
        return False
    node.args = (inner.args[0], *node.args[1:])
    return True
