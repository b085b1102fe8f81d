"""Let attention read keys and values that several heads share without repeating them.

    attention(q, repeat(k), repeat(v))   ->   attention(q, k, v, enable_gqa=True)

Models with grouped queries repeat keys and values for every head of a group before attention, which copies
both in every layer and for every token of a cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.canonical_views import RESHAPE, UNSAFE_VIEW, VIEW
from staticrt.passes.effects import argument, named_argument
from staticrt.passes.symbols import known_equal, known_equal_all

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default
GROUPING = frozenset({VIEW, UNSAFE_VIEW, RESHAPE})
COPIES = frozenset({aten.clone.default, aten.contiguous.default})
EXPAND = aten.expand.default
UNSQUEEZE = aten.unsqueeze.default
REPEAT = aten.repeat_interleave.self_int


@register_pass
class ShareHeads(GraphPass):
    """Give attention the keys and values before they were repeated for the heads of each group.

    Both must be repeated equally often, each head next to its copies, as `enable_gqa` pairs them, and a row of
    either must be adjacent in memory. Not with dropout, nor where some node writes the keys or values.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the order of accumulation, with the strides they had.
    """

    name = "share-heads"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        found = [(node, pair) for node in each_node(gm, [SDPA]) if (pair := _sources(node)) is not None]
        if not found:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        count = 0
        for node, (k, v) in found:
            if any(aliases.is_written(n) for n in (k, v, *node.args[1:3]) if isinstance(n, fx.Node)):
                continue
            node.args = (node.args[0], k, v, *node.args[3:])
            node.kwargs = {**node.kwargs, "enable_gqa": True}
            count += 1
        return PassResult(gm, changed=count > 0, count=count)


def _sources(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Keys and values of `node` before they were repeated."""
    if len(node.args) < 3 or named_argument(node, "enable_gqa") or named_argument(node, "dropout_p") != 0.0:
        return None
    query, keys, values = (tensor_meta(n) for n in node.args[:3])
    if query is None or keys is None or values is None or query.dim() != 4:
        return None
    # Otherwise another kernel than flash attention may run, whose result has other strides.
    if query.device.type != "cpu" or not known_equal(query.shape[-1], values.shape[-1]):
        return None
    k, v = _repeated(node.args[1]), _repeated(node.args[2])
    return (k, v) if k is not None and v is not None else None


def _repeated(node: Any) -> fx.Node | None:
    """[batch, heads, rows, depth] whose every head `node` repeats, copies next to each other."""
    if not isinstance(node, fx.Node):
        return None
    if node.target is REPEAT:
        source: Any = node.args[0]
        return source if argument(node, 2) in (1, -3) and _is_heads(source, node) else None
    if node.target not in GROUPING:
        return None
    spread: Any = node.args[0]
    while isinstance(spread, fx.Node) and spread.target in COPIES:
        spread = spread.args[0]
    if not isinstance(spread, fx.Node) or spread.target is not EXPAND:
        return None
    inner: Any = spread.args[0]
    if not isinstance(inner, fx.Node) or inner.target is not UNSQUEEZE or inner.args[1] not in (2, -3):
        return None
    source = inner.args[0]
    before, after, whole = tensor_meta(inner), tensor_meta(spread), tensor_meta(node)
    if before is None or after is None or whole is None or not _is_heads(source, node):
        return None
    copies = after.shape[2]
    fits = (
        before.dim() == after.dim() == 5
        and known_equal(before.shape[2], 1)
        and known_equal_all((*after.shape[:2], *after.shape[3:]), (*before.shape[:2], *before.shape[3:]))
        and known_equal_all(whole.shape, (after.shape[0], after.shape[1] * copies, *after.shape[3:]))
    )
    return source if fits else None


def _is_heads(source: Any, repeated: fx.Node) -> bool:
    """Whether `source` is like `repeated` except for the number of heads, with adjacent rows."""
    before, after = tensor_meta(source), tensor_meta(repeated)
    if before is None or after is None or before.dim() != 4 or after.dim() != 4:
        return False
    last = before.stride(-1)
    return (
        isinstance(last, int)
        and last == 1
        and known_equal_all(before.shape[2:], after.shape[2:])
        and known_equal(before.shape[0], after.shape[0])
        and isinstance(before.shape[1], int)
        and isinstance(after.shape[1], int)
        and before.shape[1] > 0
        and after.shape[1] % before.shape[1] == 0
    )
