"""Recognise attention written out by hand.

    softmax(q @ k.transpose(-1, -2) * scale, dim=-1) @ v   ->   scaled_dot_product_attention(q, k, v)

The whole op reads the scores tile by tile; written out, the scores [batch, heads, queries, keys] go
through memory four times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.ops.facts import Tolerance
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, each_node, register_pass, tensor_meta
from staticrt.passes.canonical_views import permutation
from staticrt.passes.effects import named_argument
from staticrt.passes.rewrite import insert_call
from staticrt.passes.symbols import known_equal, same_meta

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default
MATMUL = aten.matmul.default
SOFTMAX = frozenset({aten._softmax.default, aten.softmax.int})
SCALINGS = frozenset({aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar})


@register_pass
class FuseAttention(GraphPass):
    """Replace attention without a mask by `scaled_dot_product_attention`.

    Operands of rank 4 and one floating dtype, equal batch and heads, a softmax over the keys in that
    dtype, at most one literal scale. Not where scores or probabilities are read elsewhere, as in models
    that return their attention weights; and not with a mask: a row that is masked everywhere is NaN
    when written out and 0 in the whole op.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the order of accumulation, with the strides they had.
    """

    name = "fuse-attention"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        matches = [(product, _match(product)) for product in each_node(gm, [MATMUL])]
        if not any(match for _, match in matches):
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        count = 0
        for product, match in matches:
            if match is None or any(aliases.is_written(n) for n in match[:3]):
                continue
            q, k, v, scale = match
            fused = insert_call(product, SDPA, (q, k, v), {"scale": scale})
            before, after = tensor_meta(product), tensor_meta(fused)
            if before is None or after is None or not same_meta(before, after):
                gm.graph.erase_node(fused)
                continue
            product.replace_all_uses_with(fused)
            gm.graph.erase_node(product)
            count += 1
        return PassResult(gm, changed=count > 0, count=count)


def _match(product: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node, float] | None:
    """(q, k, v, scale) of the attention that ends in `product`, or None."""
    probabilities: Any = product.args[0]
    v: Any = product.args[1]
    if not _is_inner(probabilities) or probabilities.target not in SOFTMAX:
        return None
    scores: Any = probabilities.args[0]
    rows = tensor_meta(probabilities)
    dim = probabilities.args[1]
    if rows is None or rows.dim() != 4 or dim not in (-1, 3):
        return None
    if named_argument(probabilities, "dtype") is not None or named_argument(probabilities, "half_to_float"):
        return None
    scale = 1.0
    if _is_inner(scores) and scores.target in SCALINGS:
        factor = scores.args[1]
        if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not factor:
            return None
        scale = 1.0 / factor if scores.target in (aten.div.Tensor, aten.div.Scalar) else float(factor)
        scores = scores.args[0]
    if not _is_inner(scores) or scores.target is not MATMUL:
        return None
    q: Any = scores.args[0]
    keys: Any = scores.args[1]
    if not isinstance(keys, fx.Node) or permutation(keys) != [0, 1, 3, 2]:
        return None
    k: Any = keys.args[0]
    return (q, k, v, scale) if _fits(q, k, v, rows) else None


def _is_inner(node: Any) -> bool:
    """A call with one reader, whose value nobody else needs."""
    return isinstance(node, fx.Node) and node.op == "call_function" and len(node.users) == 1


def _fits(q: Any, k: Any, v: Any, rows: torch.Tensor) -> bool:
    metas = [tensor_meta(n) for n in (q, k, v)]
    if any(m is None or m.dim() != 4 or m.dtype != rows.dtype for m in metas):
        return False
    if not rows.dtype.is_floating_point:
        return False
    return all(
        known_equal(m.shape[d], rows.shape[d])  # type: ignore[union-attr]
        for m in metas
        for d in (0, 1)
    )
