"""Fuse attention that a model computes with separate operators.

    softmax(q @ k.transpose(-1, -2) * scale + mask, dim=-1) @ v   ->   scaled_dot_product_attention(q, k, v, mask)

The fused op computes the scores tile by tile; unfused, the scores [batch, heads, queries, keys] pass
through memory four times, and six times with a mask.

Note [Rows that are masked everywhere]: unfused, such a row is NaN if the mask is -inf, and the mean of all
values if it is a large negative number. The fused op returns 0 for the former. So for masks of -inf the pass adds two
cheap calls that find these rows in the mask and write NaN into them; a causal mask has none, and masks of
large negative numbers are added as numbers, which gives the mean.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.attention_masks import HIDING, chosen, literal
from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.canonical_views import PERMUTE, PERMUTING, RESHAPE, permutation
from staticrt.passes.combine_masks import Masks, MaskStep, fake_like
from staticrt.passes.effects import named_argument
from staticrt.passes.rewrite import fake_mode_of, insert_call
from staticrt.passes.symbols import known_equal, known_equal_all, same_meta

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default
PRODUCTS = frozenset({aten.matmul.default, aten.bmm.default})
SOFTMAX = frozenset({aten._softmax.default, aten.softmax.int})
MULTIPLY = frozenset({aten.mul.Tensor, aten.mul.Scalar})
SCALINGS = frozenset({*MULTIPLY, aten.div.Tensor, aten.div.Scalar})
COPIES = frozenset({aten.clone.default, aten.contiguous.default})


@dataclass
class _Attention:
    """One attention that ends in `product`; `keys` is [..., depth, keys], its steps innermost first."""

    product: fx.Node
    q: fx.Node
    keys: fx.Node
    v: fx.Node
    scores: torch.Tensor
    scalings: list[fx.Node] = field(default_factory=list)
    steps: list[MaskStep] = field(default_factory=list)

    def read(self) -> list[fx.Node]:
        return [self.q, self.keys, self.v, *(step.mask for step in self.steps)]


@register_pass
class FuseAttention(GraphPass):
    """Replace unfused attention by `scaled_dot_product_attention`.

    Operands of rank 3 or 4 and one floating dtype, equal batch and heads, a softmax over the keys in that
    dtype, scales that are numbers. Masks are added, or fill scores with -inf or -1e9 and less; only where
    scores are float32 or float64, because in lower precision a mask of numbers rounds scores away. Not
    where scores or probabilities are read elsewhere, as in models that return their attention weights.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the order of accumulation, with the strides they had; rows that are masked
              everywhere as in eager.
    """

    name = "fuse-attention"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        found = [m for product in each_node(gm, PRODUCTS) if (m := _match(product)) is not None]
        if not found:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        masks = Masks()
        count = 0
        for match in found:
            if any(aliases.is_written(n) for n in match.read()):
                continue
            # An earlier replacement may have changed an operand, so match again.
            now = _match(match.product)
            count += now is not None and _replace(now, masks)
        return PassResult(gm, changed=count > 0, count=count)


def _match(product: fx.Node) -> _Attention | None:
    probabilities: Any = product.args[0]
    v: Any = product.args[1]
    if not _is_inner(probabilities) or probabilities.target not in SOFTMAX:
        return None
    rows = tensor_meta(probabilities)
    if rows is None or rows.dim() not in (3, 4) or probabilities.args[1] not in (-1, rows.dim() - 1):
        return None
    if named_argument(probabilities, "half_to_float"):
        return None
    at: Any = probabilities.args[0]
    scores = tensor_meta(at)
    # softmax(x, dtype=...) of another dtype also rounds elsewhere
    if scores is None or scores.dtype != rows.dtype or not isinstance(v, fx.Node):
        return None
    steps: list[MaskStep] = []
    while (step := _step(at, scores)) is not None:
        steps.insert(0, step[0])
        at = step[1]
    scalings: list[fx.Node] = []
    while _is_inner(at) and at.target in SCALINGS and not at.kwargs and _is_number(at.args[1]):
        scalings.insert(0, at)
        at = at.args[0]
    if not _is_inner(at) or at.target not in PRODUCTS:
        return None
    q = _unscaled(at.args[0], scalings, scores)
    keys = _unscaled(at.args[1], scalings, scores)
    found = _Attention(product, q, keys, v, scores, scalings, steps)
    return found if _fits(found) else None


def _is_inner(node: Any) -> bool:
    """Whether `node` is a call with one reader."""
    return isinstance(node, fx.Node) and node.op == "call_function" and len(node.users) == 1


def _unscaled(operand: Any, scalings: list[fx.Node], scores: torch.Tensor) -> Any:
    """An operand of the first product without a scale of its own, as exporters write it (the root of the scale on
    either side); the scale joins the others. In lower precision it keeps the product in range, and stays."""
    if scores.dtype not in (torch.float32, torch.float64):
        return operand
    while _is_inner(operand) and operand.target in SCALINGS and not operand.kwargs and len(operand.args) == 2:
        before, after = tensor_meta(operand.args[0]), tensor_meta(operand)
        if (
            literal(operand.args[1]) is None
            or not _is_number(operand.args[1])
            or before is None
            or after is None
        ):
            break
        if before.dtype != after.dtype or not known_equal_all(before.shape, after.shape):
            break
        scalings.append(operand)
        operand = operand.args[0]
    return operand


def _is_number(value: Any) -> bool:
    """Whether scores may be multiplied by `value`: not 0, not a tensor of data."""
    if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), (torch.SymFloat, torch.SymInt)):
        return True
    number = literal(value)
    return number is not None and number != 0 and math.isfinite(number) and not isinstance(value, bool)


def _step(node: Any, scores: torch.Tensor) -> tuple[MaskStep, fx.Node] | None:
    """(what `node` does to the scores, the scores before), if it applies a mask."""
    if not _is_inner(node) or node.kwargs or scores.dtype not in (torch.float32, torch.float64):
        return None
    if node.target is aten.add.Tensor:
        for inner, mask in (node.args, node.args[::-1]):
            if _is_scores(inner, scores) and _is_mask(mask, scores, scores.dtype) and mask is not inner:
                return MaskStep(mask), inner
        return None
    parts = chosen(node)
    if parts is None or not _is_mask(parts[0], scores, torch.bool):
        return None
    for inner, other, when in ((parts[2], parts[1], True), (parts[1], parts[2], False)):
        value = literal(other)
        if value is not None and value <= HIDING and _is_scores(inner, scores):
            return MaskStep(parts[0], value, when), inner
    return None


def _is_scores(node: Any, scores: torch.Tensor) -> bool:
    """Whether `node` may have become the scores: an inner node of their sizes that is not a mask itself."""
    meta = tensor_meta(node)
    if not _is_inner(node) or meta is None or meta.dtype != scores.dtype:
        return False
    if not known_equal_all(meta.shape, scores.shape):
        return False
    return node.target in PRODUCTS or node.target in SCALINGS or _step(node, scores) is not None


def _is_mask(node: Any, scores: torch.Tensor, dtype: torch.dtype) -> bool:
    meta = tensor_meta(node)
    return meta is not None and meta.dtype == dtype and 0 < meta.dim() <= scores.dim()


def _fits(found: _Attention) -> bool:
    scores, rank = found.scores, found.scores.dim()
    metas = [tensor_meta(n) for n in (found.q, found.keys, found.v)]
    if any(m is None or m.dim() != rank or m.dtype != scores.dtype for m in metas):
        return False
    if not scores.dtype.is_floating_point:
        return False
    q, keys, v = (m for m in metas if m is not None)
    if any(not known_equal(m.shape[d], scores.shape[d]) for m in (q, keys, v) for d in range(rank - 2)):
        return False
    # Rows must be adjacent: keys are seen transposed.
    return all(isinstance(n, int) and n == 1 for n in (q.stride(-1), keys.stride(-2), v.stride(-1)))


def _replace(match: _Attention, masks: Masks) -> bool:
    product = match.product
    rank = match.scores.dim()
    before = tensor_meta(product)
    k = _transposed(match.keys, product)
    operands = [match.q, k, match.v]
    if rank == 3:
        operands = [insert_call(product, aten.unsqueeze.default, (n, 1)) for n in operands]
    mask, causal, hidden = masks.of(match.steps, match.scores, product)
    kwargs: dict[str, Any] = {"scale": _scale(match.scalings, product)}
    args = (*operands, *((mask, 0.0, causal) if mask is not None or causal else ()))
    value, surely = _result(*operands)
    fused = insert_call(product, SDPA, args, kwargs, value=value)
    if not surely:
        fused = insert_call(product, aten.contiguous.default, (fused,), value=value)
    if hidden is not None:
        args = (hidden, math.nan, fused)
        fused = insert_call(product, aten.where.ScalarSelf, args, value=fake_like(fused, match.scores.dtype))
    if rank == 3:
        fused = insert_call(product, aten.squeeze.dim, (fused, 1))
    after = tensor_meta(fused)
    assert before is not None
    assert after is not None
    if not same_meta(before, after):
        _read_without_copies(product, fused)
        if product.users:
            kwargs = {"memory_format": torch.contiguous_format}
            with fake_mode_of(before):
                value = before.new_empty(before.shape)
            fused = insert_call(product, aten.clone.default, (fused,), kwargs, value=value)
            if not same_meta(before, fused.meta["val"]):
                return False  # the rest is dead code now
    product.replace_all_uses_with(fused)
    product.graph.erase_node(product)
    return True


def _transposed(keys: fx.Node, at: fx.Node) -> fx.Node:
    """`keys` with its last two dims swapped, without a second permutation where it is one itself."""
    rank = keys.meta["val"].dim()
    order = [*range(rank - 2), rank - 1, rank - 2]
    inner = permutation(keys) if keys.target in PERMUTING else None
    if inner is None:
        return insert_call(at, PERMUTE, (keys, order))
    source: Any = keys.args[0]
    dims = [inner[d] for d in order]
    return source if dims == list(range(rank)) else insert_call(at, PERMUTE, (source, dims))


def _scale(scalings: list[fx.Node], at: fx.Node) -> Any:
    """The product of all scales: a number, or a node that computes it."""
    number, nodes = 1.0, []
    for scaling in scalings:
        factor: Any = scaling.args[1]
        known = literal(factor)
        if known is None:
            nodes.append((operator.mul if scaling.target in MULTIPLY else operator.truediv, factor))
        else:
            number = number * known if scaling.target in MULTIPLY else number / known
    scale: Any = number
    for function, factor in nodes:
        value = function(scale.meta["val"] if isinstance(scale, fx.Node) else scale, factor.meta["val"])
        with at.graph.inserting_before(at):
            scale = at.graph.call_function(function, (scale, factor))
        scale.meta["val"] = value
    return scale


def _result(q: fx.Node, k: fx.Node, v: fx.Node) -> tuple[torch.Tensor, bool]:
    """(fake result, whether its strides are certain; without keys it may be contiguous nevertheless).

    The flash kernel keeps the query's layout, others return a contiguous result:
    aten/src/ATen/native/transformers/sdp_utils_cpp.cpp, use_flash_attention_cpp, and FlashAttentionKernel.cpp.
    """
    query, value = q.meta["val"], v.meta["val"]
    flash = (
        known_equal(query.shape[-1], value.shape[-1])
        and query.device.type == "cpu"
        and torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    )
    with fake_mode_of(query):
        if not flash:
            return query.new_empty([*query.shape[:-1], value.shape[-1]]), False
        if any(known_equal_all(query.stride(), strides) for strides in _dense_strides(query.shape)):
            return query.new_empty_strided(query.shape, query.stride()), True
        return torch.empty_like(query), True


def _dense_strides(shape: Any) -> list[tuple[Any, ...]]:
    """Of [batch, heads, rows, depth] in memory, and of [batch, rows, heads, depth]."""
    heads, rows, depth = shape[1:]
    return [
        (rows * heads * depth, rows * depth, depth, 1),
        (rows * heads * depth, depth, heads * depth, 1),
    ]


def _read_without_copies(product: fx.Node, fused: fx.Node) -> None:
    """Let readers that transpose the result and make it contiguous read `fused`, which usually has that layout."""
    for user in list(product.users):
        if user.target not in PERMUTING or not all(
            reader.target is RESHAPE
            or (reader.target in COPIES and reader.kwargs.get("memory_format") == torch.contiguous_format)
            for reader in user.users
        ):
            continue
        copies = [reader for reader in user.users if reader.target in COPIES]
        if len(copies) > 1 or (copies and len(user.users) > 1):
            continue
        moved = insert_call(user, user.target, (fused, *user.args[1:]))
        user.replace_all_uses_with(moved)
        user.graph.erase_node(user)
        for copy in copies:
            # A copy only where another kernel than expected was taken.
            copy.target, copy.kwargs = aten.contiguous.default, {}
