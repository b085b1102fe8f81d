"""Attention written out by hand becomes one call where nobody can tell, masks and all."""

import math

import pytest
import torch
from torch.nn import functional as F

import staticrt
from staticrt.passes.canonical_views import CanonicalViews
from staticrt.passes.dead_code import RemoveDeadCode
from staticrt.passes.fuse_attention import FuseAttention
from staticrt.passes.no_ops import RemoveNoOps

SDPA = torch.ops.aten.scaled_dot_product_attention.default
INF = float("inf")
MIN = torch.finfo(torch.float32).min


def inputs(queries=5, keys=7):
    return [torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4), torch.randn(2, 3, keys, 4)]


def scaled(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.5).softmax(-1) @ v + 1


def divided(q, k, v):
    return (torch.matmul(q, k.permute(0, 1, 3, 2)) / 2.0).softmax(dim=3) @ v + 1


def unscaled(q, k, v):
    return (q @ k.transpose(2, 3)).softmax(-1) @ v + 1


def scaled_apart(q, k, v):
    return ((q * 0.7) @ (k.transpose(-1, -2) * 0.7 / 3.0) * 2.0).softmax(-1) @ v + 1


@pytest.mark.parametrize("function", [scaled, divided, unscaled, scaled_apart])
def test_written_out_attention_becomes_one_call(trace, function):
    graph = trace(function, inputs())
    assert graph.run(FuseAttention(), inputs()).count == 1
    RemoveDeadCode()(graph.gm)
    assert graph.targets() == [str(SDPA), "aten.add.Tensor"]


def test_a_scale_that_widens_an_operand_stays(trace):
    graph = trace(lambda q, k, v: ((q * torch.ones(2, 3, 5, 4)) @ k).softmax(-1) @ v, [
        torch.randn(1, 3, 5, 4), torch.randn(2, 3, 4, 7), torch.randn(2, 3, 7, 4)])  # fmt: skip
    graph.run(FuseAttention(), [torch.randn(1, 3, 5, 4), torch.randn(2, 3, 4, 7), torch.randn(2, 3, 7, 4)])


def test_symbolic_lengths(trace):
    length = torch.export.Dim("length", min=3)
    spec = ({2: length}, {2: length}, {2: length})
    graph = trace(scaled, inputs(5, 5), {"args": spec})
    assert graph.run(FuseAttention(), inputs(9, 9)).count == 1


def attend(q, k, v, mask=lambda s: s, scale=0.5):
    return mask((q @ k.transpose(-1, -2)) * scale).softmax(-1) @ v + 1


def lower(s):
    return torch.ones(s.shape[-2:]).tril()


CAUSAL = {
    "ones, tril, == 0": lambda s: s.masked_fill(lower(s) == 0, -INF),
    "a bool matrix": lambda s: s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -INF),
    "triu of ones": lambda s: s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -1e9),
    "triu of ones, == 1": lambda s: s.masked_fill(torch.triu(torch.ones(s.shape[-2:]), 1) == 1, -INF),
    "triu of -inf, added": lambda s: s + torch.full(s.shape[-2:], -INF).triu(1),
    "where": lambda s: torch.where(lower(s).bool()[None, None], s, MIN),
    "where, swapped": lambda s: torch.where(lower(s)[None, None] == 0, torch.full((), -INF), s),
    "product": lambda s: s + (1.0 - lower(s)) * -1e9,
    "positions": lambda s: s.masked_fill(
        torch.arange(s.shape[-1])[None, :] > torch.arange(s.shape[-2])[:, None], -INF
    ),
    "positions, other side": lambda s: torch.where(
        torch.arange(s.shape[-2]).view(-1, 1) >= torch.arange(s.shape[-1]), s, -INF
    ),
    "positions, strictly": lambda s: torch.where(
        torch.arange(s.shape[-1]) < torch.arange(s.shape[-2]).unsqueeze(1) + 1, s, -INF
    ),
    "positions, an additive mask": lambda s: (
        s
        + torch.where(torch.arange(s.shape[-1]) <= torch.arange(s.shape[-2])[:, None], 0.0, MIN).expand(
            2, 1, -1, -1
        )
    ),
}


@pytest.mark.parametrize("mask", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("sizes", [(5, 5), (5, 7), (7, 5)])
def test_causal_masks_go(trace, mask, sizes):
    graph = trace(lambda q, k, v: attend(q, k, v, mask), inputs(*sizes))
    RemoveNoOps()(graph.gm)
    assert graph.run(FuseAttention(), inputs(*sizes)).count == 1
    (call,) = [n for n in graph.gm.graph.nodes if n.target is SDPA]
    assert call.args[3:] == (None, 0.0, True)
    RemoveDeadCode()(graph.gm)
    assert graph.targets() == [str(SDPA), "aten.add.Tensor"]


NOT_CAUSAL = {
    "one diagonal further": lambda s: s.masked_fill(torch.ones(s.shape[-2:]).tril(1) == 0, -INF),
    "the diagonal hidden": lambda s: s.masked_fill(torch.ones(s.shape[-2:]).triu().bool(), -1e9),
    "the past hidden": lambda s: s.masked_fill(lower(s) == 1, MIN),
    "not equal": lambda s: s.masked_fill(lower(s) * 2 == 1, -INF),
    "rows and keys swapped": lambda s: s.masked_fill(
        torch.arange(s.shape[-1]) < torch.arange(s.shape[-2])[:, None], -INF
    ),
    "positions with an offset": lambda s: s.masked_fill(
        torch.arange(2, s.shape[-1] + 2) > torch.arange(s.shape[-2])[:, None] + 1, MIN
    ),
    "every other key": lambda s: s.masked_fill(
        torch.arange(0, 2 * s.shape[-1], 2) > torch.arange(s.shape[-2])[:, None], -INF
    ),
    "twos": lambda s: s + (1.0 - 2 * lower(s)) * -1e9,
    "transposed": lambda s: s.masked_fill(lower(s).T == 0, -INF),
}


@pytest.mark.parametrize("mask", NOT_CAUSAL.values(), ids=NOT_CAUSAL)
def test_masks_that_are_nearly_causal_are_kept(trace, mask):
    graph = trace(lambda q, k, v: attend(q, k, v, mask), inputs(5, 5))
    RemoveNoOps()(graph.gm)
    assert graph.run(FuseAttention(), inputs(5, 5)).count == 1  # compared with eager
    (call,) = [n for n in graph.gm.graph.nodes if n.target is SDPA]
    assert call.args[3] is not None
    assert call.args[5] is False


def padding(rows_hidden=(0,), shape=(2, 1, 5, 7)):
    """True where a key is seen: at random, but for rows that see nothing."""
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True
    for row in rows_hidden:
        mask[0, ..., row, :] = False
    return mask


MASKS = {
    "added -inf": lambda s, m: s + torch.zeros_like(m, dtype=torch.float).masked_fill(~m, -INF),
    "added min": lambda s, m: s + torch.where(m, 0.0, MIN),
    "added -1e4": lambda s, m: s + (1.0 - m.float()) * -10000.0,
    "filled with -inf": lambda s, m: s.masked_fill(~m, -INF),
    "filled with -1e9": lambda s, m: s.masked_fill(m == 0, -1e9),
    "where, -inf": lambda s, m: torch.where(m, s, -INF),
    "where, min": lambda s, m: torch.where(m, s, torch.full((), MIN)),
    "bias and fill": lambda s, m: (s + m.float().cumsum(-1) * 0.1).masked_fill(~m, -INF),
    "fill and bias": lambda s, m: s.masked_fill(~m, MIN) + m.float() * 0.3,
    "two masks": lambda s, m: s.masked_fill(~m, -INF) + torch.full((5, 7), -INF).triu(1),
    "two finite masks": lambda s, m: s + torch.where(m, 0.0, MIN) + torch.full((5, 7), MIN).triu(1),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 1, 5, 7), torch.float32), ((2, 3, 5, 7), torch.float64), ((1, 1, 5, 7), torch.float32)],
)
def test_masks(trace, mask, shape, dtype):
    """Two rows see nothing: NaN or the mean of all values, as eager says (see the Note)."""
    torch.manual_seed(1)
    args = [x.to(dtype) for x in inputs()]

    def model(q, k, v, m):
        return attend(q, k, v, lambda s: mask(s, m))

    graph = trace(model, [*args, padding((0, 3), shape)])
    RemoveNoOps()(graph.gm)
    others = [[*(x.to(dtype) for x in inputs()), padding(rows, shape)] for rows in ((), (1, 4))]
    # A mask of another type than the scores widens them, or narrows what is added: left alone.
    fits = dtype == torch.float32
    assert graph.run(FuseAttention(), *others).count == (1 if fits else graph.count(SDPA))


@pytest.mark.parametrize(
    "shape", [(7,), (5, 7), (1, 7), (5, 1), (3, 5, 7), (1, 5, 7), (2, 1, 1, 7), (1, 1, 1, 7)]
)
def test_masks_of_all_ranks(trace, shape):
    mask = torch.rand(shape) > 0.5
    graph = trace(lambda q, k, v, m: attend(q, k, v, lambda s: s.masked_fill(m, -INF)), [*inputs(), mask])
    assert graph.run(FuseAttention()).count == 1


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 5), (1, 5, 5), (2, 1, 5)])
def test_without_heads(trace, shape):
    q = torch.randn(2, 5, 4)

    def model(q, k, v, m):
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).add(m).softmax(-1), v)

    graph = trace(model, [q, q + 1, q - 1, torch.randn(shape).triu(1) * -INF])
    assert graph.run(FuseAttention()).count == int(torch.broadcast_shapes(shape, (2, 5, 5)) == (2, 5, 5))


def heads(x, count=3):
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def test_heads_in_a_projection_need_no_copy(trace):
    def contiguous(x):
        y = ((heads(x) @ heads(x * 2).mT).softmax(-1) @ heads(x - 1)).transpose(1, 2)
        return y.contiguous().view(x.shape) * 2

    def reshaped(x):
        y = ((heads(x) @ heads(x * 2).mT).softmax(-1) @ heads(x - 1)).transpose(1, 2)
        return y.reshape(x.shape) * 2

    def read_as_well(x):
        y = (heads(x) @ heads(x * 2).mT).softmax(-1) @ heads(x - 1)
        return y.transpose(1, 2).contiguous().view(x.shape) * 2, y * 1.5

    def returned(x):
        return (heads(x) @ heads(x * 2).mT).softmax(-1) @ heads(x - 1)

    for model, copies in ((contiguous, 0), (reshaped, 0), (read_as_well, 1), (returned, 1)):
        graph = trace(model, [torch.randn(2, 5, 12)])
        assert graph.run(FuseAttention()).count == 1
        assert graph.count(torch.ops.aten.clone.default) == copies, model


def test_two_layers_share_what_is_made_of_their_mask(trace):
    def model(q, k, v, m):
        one = attend(q, k, v, lambda s: s.masked_fill(m, -INF))
        return attend(one, k, v, lambda s: s.masked_fill(m, -INF))

    graph = trace(model, [*inputs(), ~padding()])
    assert graph.run(FuseAttention()).count == 2
    assert graph.count(torch.ops.aten.all.dim) == 1


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 3, 5, 4)])
def test_attention_over_the_result_of_attention(trace, shape):
    """What takes the place of the first product is the second one's queries, keys and values."""

    def function(x):
        for _ in range(3):
            x = (x @ x.transpose(-1, -2)).softmax(-1) @ x
        return x

    inputs = [torch.randn(shape)]
    assert trace(function, inputs).run(FuseAttention(), inputs).count == 3


def test_dropout_that_drops_nothing_is_no_obstacle(trace):
    for train, p in ((False, 0.5), (True, 0.0)):
        graph = trace(
            lambda q, k, v, p=p, train=train: F.dropout((q @ k.mT).softmax(-1), p, train) @ v, inputs()
        )
        graph.run(RemoveNoOps())
        assert graph.run(FuseAttention()).count == 1


def returns_weights(q, k, v):
    weights = ((q @ k.transpose(-1, -2)) * 0.5).softmax(-1)
    return weights @ v, weights


def over_queries(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.5).softmax(-2) @ v


def no_transpose(q, k, v):
    return (q @ k.view(2, 3, 4, 7)).softmax(-1) @ v


def other_dtype(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1, dtype=torch.float64) @ v.double()


def tensor_scale(q, k, v):
    return ((q @ k.transpose(-1, -2)) * q.sum()).softmax(-1) @ v


def zero_scale(q, k, v):
    return ((q @ k.transpose(-1, -2)) * 0.0).softmax(-1) @ v


def shared_heads(q, k, v):
    return (q @ k[:, :1].transpose(-1, -2)).softmax(-1) @ v[:, :1]


def scores_read_twice(q, k, v):
    scores = q @ k.transpose(-1, -2)
    return (scores + scores.mean(-1, keepdim=True)).softmax(-1) @ v


def mask_made_of_scores(q, k, v):
    scores = q @ k.transpose(-1, -2)
    return scores.masked_fill(scores < 0, -INF).softmax(-1) @ v


def a_small_number_as_mask(q, k, v):
    return (q @ k.transpose(-1, -2)).masked_fill(torch.eye(5, 7).bool(), -10.0).softmax(-1) @ v


def larger_mask(q, k, v):
    return ((q[:1] @ k[:1].transpose(-1, -2)) + torch.ones(2, 1, 1, 1)).softmax(-1) @ v


def mask_of_a_wider_type(q, k, v):
    return ((q @ k.mT) + torch.ones(5, 7, dtype=torch.float64)).softmax(-1) @ v.double()


def scaled_after_the_mask(q, k, v):
    return (((q @ k.mT) + torch.eye(5, 7)) * 0.5).softmax(-1) @ v


def half_with_mask(q, k, v):
    q, k, v = (x.bfloat16() for x in (q, k, v))
    return ((q @ k.mT) + torch.full((5, 7), -1e4, dtype=torch.bfloat16)).softmax(-1) @ v


@pytest.mark.parametrize(
    "function",
    [
        *(returns_weights, over_queries, no_transpose, other_dtype, tensor_scale, zero_scale, shared_heads),
        *(scores_read_twice, mask_made_of_scores, a_small_number_as_mask, larger_mask),
        *(mask_of_a_wider_type, scaled_after_the_mask, half_with_mask),
    ],
)
def test_other_calls_stay(trace, function):
    graph = trace(function, inputs())
    graph.run(CanonicalViews())
    assert not graph.run(FuseAttention()).changed


def test_a_mask_that_is_written_meanwhile(build):
    aten = torch.ops.aten

    def body(graph, q, k, v, mask):
        scores = graph.call_function(aten.matmul.default, (q, graph.call_function(aten.mT.default, (k,))))
        scores = graph.call_function(aten.add.Tensor, (scores, mask))
        graph.call_function(aten.zero_.default, (mask,))
        weights = graph.call_function(aten.softmax.int, (scores, -1))
        return (graph.call_function(aten.matmul.default, (weights, v)),)

    graph = build(body, [*inputs(), torch.randn(5, 7)])
    assert not graph.run(FuseAttention()).changed


def check(model, *argsets):
    fast = staticrt.compile(model)
    for args in argsets:
        for _ in range(3):
            with torch.no_grad():
                torch.testing.assert_close(
                    fast(*args), model(*args), rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=True
                )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_compiled_calls_answer_as_eager(mask):
    torch.manual_seed(2)

    def model(q, k, v, m):
        return attend(q, k, v, lambda s: mask(s, m), scale=1 / math.sqrt(q.shape[-1]))

    argsets = [[*inputs(), padding(rows)] for rows in ((0, 3), (), (2,))]
    check(model, *argsets)


@pytest.mark.parametrize("mask", CAUSAL.values(), ids=CAUSAL)
def test_compiled_causal_attention_of_any_length(mask):
    def model(q, k, v):
        return attend(q, k, v, mask, scale=q.size(-1) ** -0.5)

    check(model, inputs(5, 5), inputs(9, 9), inputs(9, 4), inputs(1, 6))


def test_filled_masks_of_any_length():
    def model(q, k, v, m):
        return attend(q, k, v, lambda s: s.masked_fill(~m, -1e9))

    fast = staticrt.compile(model, fullgraph=True)
    for keys in (7, 4, 1):
        args = [*inputs(5, keys), torch.rand(2, 1, 5, keys) > 0.5]
        with torch.no_grad():
            torch.testing.assert_close(fast(*args), model(*args))


def test_without_keys_nothing_is_hidden():
    """Eager's answer is 0 then, not NaN, although "all" of no keys are hidden."""

    def model(q, k, v, m):
        return attend(q, k[:, :, 3:], v[:, :, 3:], lambda s: s.masked_fill(m[..., 3:], -INF))

    check(model, *([*inputs(5, n), torch.rand(2, 1, 5, n) > 0.5] for n in (7, 3, 4)))
