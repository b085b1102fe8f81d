"""Grouped queries: attention reads shared keys and values without their copies."""

import pytest
import torch
from torch.nn import functional as F

import staticrt
from staticrt.passes.canonical_views import CanonicalViews
from staticrt.passes.fuse_attention import FuseAttention
from staticrt.passes.share_heads import ShareHeads

SDPA = torch.ops.aten.scaled_dot_product_attention.default


def inputs(batch=2, length=5, keys=7):
    return [torch.randn(batch, 6, length, 8), *(torch.randn(batch, 2, keys, 8) for _ in range(2))]


def repeat_kv(x, times=3):
    batch, heads, length, depth = x.shape
    x = x[:, :, None, :, :].expand(batch, heads, times, length, depth)
    return x.reshape(batch, heads * times, length, depth)


def whole(q, k, v):
    return F.scaled_dot_product_attention(q, repeat_kv(k), repeat_kv(v)) * 2


def masked(q, k, v):
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(2)
    return F.scaled_dot_product_attention(q, repeat_kv(k), repeat_kv(v), mask, scale=0.3) * 2


def written_out(q, k, v):
    return (q @ repeat_kv(k).transpose(2, 3) * 0.4).softmax(-1) @ repeat_kv(v) * 2


def interleaved(q, k, v):
    k, v = k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=-3)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2


@pytest.mark.parametrize("model", [whole, masked, written_out, interleaved])
def test_keys_and_values_are_not_repeated(trace, model):
    graph = trace(model, inputs())
    CanonicalViews()(graph.gm)
    FuseAttention()(graph.gm)
    assert graph.run(ShareHeads(), inputs()).count == 1
    (call,) = [n for n in graph.gm.graph.nodes if n.target is SDPA]
    assert [n.op for n in call.args[1:3]] == ["placeholder", "placeholder"]


def tiled(q, k, v):
    """Head 0, 1, 0, 1, ...: not the order that enable_gqa means."""
    return F.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)) * 2


def tiled_by_expansion(q, k, v):
    def tile(x):
        return x[:, None].expand(-1, 3, -1, -1, -1).reshape(x.shape[0], 6, *x.shape[2:])

    return F.scaled_dot_product_attention(q, tile(k), tile(v)) * 2


def only_keys(q, k, v):
    return F.scaled_dot_product_attention(q, repeat_kv(k), v.repeat(1, 3, 1, 1)) * 2


def rows_repeated(q, k, v):
    k, v = (x.repeat_interleave(3, 1).repeat_interleave(2, 2) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v) * 2


def other_depth(q, k, v):
    return F.scaled_dot_product_attention(q, repeat_kv(k), repeat_kv(v)[..., :4]) * 2


def strided_rows(q, k, v):
    k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in (k, v))
    return F.scaled_dot_product_attention(q, repeat_kv(k), repeat_kv(v)) * 2


@pytest.mark.parametrize(
    "model", [tiled, tiled_by_expansion, only_keys, rows_repeated, other_depth, strided_rows]
)
def test_other_repetitions_stay(trace, model):
    graph = trace(model, inputs())
    CanonicalViews()(graph.gm)
    assert not graph.run(ShareHeads()).changed


def test_a_cache_that_is_written_meanwhile(build):
    aten = torch.ops.aten

    def body(graph, q, k, v):
        def call(op, *args):
            return graph.call_function(op, args)

        repeated = [call(aten.repeat_interleave.self_int, x, 3, 1) for x in (k, v)]
        call(aten.zero_.default, k)
        return (call(SDPA, q, *repeated),)

    assert not build(body, inputs()).run(ShareHeads()).changed


@pytest.mark.parametrize("model", [whole, masked, written_out, interleaved, tiled, tiled_by_expansion])
def test_compiled_calls_answer_as_eager(model):
    fast = staticrt.compile(model)
    for args in (inputs(), inputs(1, 1, 9), inputs(3, 4, 4)):
        for _ in range(3):
            with torch.no_grad():
                torch.testing.assert_close(fast(*args), model(*args), rtol=1e-4, atol=1e-5, check_stride=True)
