"""The whole pipeline: what it reports, what it refuses, and that it never changes a graph's meaning."""

from __future__ import annotations

import random

import pytest
import torch
from torch import fx, nn

from staticrt.errors import OptionError, PassError
from staticrt.passes import (
    GraphPass,
    PassResult,
    PipelineOptions,
    default_passes,
    register_pass,
    run_pipeline,
)
from staticrt.passes.base import BITWISE, registered_passes
from staticrt.passes.differential import Comparison

aten = torch.ops.aten
BATCH = torch.export.Dim("batch", min=2)


class Wrong(GraphPass):
    """Turns every sine into a cosine."""

    name = "test-wrong"

    def run(self, gm):
        for node in gm.graph.nodes:
            if node.target is aten.sin.default:
                node.target = aten.cos.default
        return PassResult(gm, changed=True, count=1)


def sine(trace):
    return trace(lambda x: x.sin() + x.sin(), [torch.rand(3)])


def test_report_says_what_each_pass_did(trace):
    graph = sine(trace)
    report = run_pipeline(graph.gm)
    by_name = {p.name: p for p in report.passes}
    assert [p.name for p in report.passes] == [p.name for p in default_passes()]
    assert by_name["merge-equal-calls"].count == 1
    assert by_name["merge-equal-calls"].num_nodes == 4
    assert by_name["merge-equal-calls"].seconds > 0
    assert "merge-equal-calls" in str(report)
    assert report.changed
    torch.testing.assert_close(graph.gm(torch.ones(3))[0], 2 * torch.ones(3).sin())


def test_a_pass_can_be_left_out(trace):
    report = run_pipeline(sine(trace).gm, disabled=["merge-equal-calls"])
    assert "merge-equal-calls" not in [p.name for p in report.passes]
    with pytest.raises(OptionError, match="cannot disable 'no-such': no such pass"):
        run_pipeline(sine(trace).gm, disabled=["no-such"])


def test_comparison_names_the_pass_that_changed_the_meaning(trace):
    graph = sine(trace)
    with pytest.raises(PassError, match="pass 'test-wrong' changed the meaning of the graph: output 0"):
        run_pipeline(graph.gm, extra=[Wrong()], compare_with=graph.inputs())


def test_comparison_sees_aliases_writes_and_randomness(build):
    def fresh(graph, x):
        return (graph.call_function(aten.clone.default, (x,)),)

    def changed(edit, body=fresh):
        graph = build(body, [torch.rand(3)])
        comparison = Comparison(graph.gm, graph.inputs())
        (node,) = [n for n in graph.gm.graph.nodes if n.op == "call_function"]
        edit(graph.gm.graph, node)
        graph.gm.recompile()
        with pytest.raises(PassError) as caught:
            comparison.check(graph.gm, "edited")
        return str(caught.value)

    assert "same tensor" in changed(lambda g, n: n.replace_all_uses_with(n.args[0]))
    assert "share storage" in changed(lambda g, n: setattr(n, "target", aten.alias.default))

    def writes(graph, node):
        with graph.inserting_after(node):
            graph.call_function(aten.zero_.default, (node.args[0],))

    assert "input 0 afterwards" in changed(writes)

    def draws(graph, node):
        with graph.inserting_after(node):
            graph.call_function(aten.rand.default, ([3],))

    assert "random numbers" in changed(draws)


def test_errors_name_pass_and_cause(trace):
    class Fails(GraphPass):
        name = "test-fails"

        def run(self, gm):
            raise KeyError("x")

    class Loses(GraphPass):
        name = "test-loses-meta"

        def run(self, gm):
            for node in gm.graph.nodes:
                node.meta.pop("val", None)
            return PassResult(gm, changed=True)

    class Signature(GraphPass):
        name = "test-signature"

        def run(self, gm):
            with gm.graph.inserting_before():
                gm.graph.placeholder("new")
            return PassResult(gm, changed=True)

    class Refuses(GraphPass):
        name = "test-refuses"

        def run(self, gm):
            raise self.refuse("no sine", at=next(iter(gm.graph.nodes)), fix="add one")

    for graph_pass, message in [
        (Fails(), r"pass 'test-fails' failed: KeyError: 'x'"),
        (
            Loses(),
            r"pass 'test-loses-meta' left a node without metadata\n  at:  .* = aten\.sin\.default.*\n  fix: leave it out",
        ),
        (Signature(), r"pass 'test-signature' changed the graph's signature"),
        (Refuses(), r"pass 'test-refuses': no sine\n  at:  placeholder \w+\n  fix: add one"),
    ]:
        with pytest.raises(PassError, match=message):
            graph_pass(sine(trace).gm)


def test_passes_are_registered_by_name():
    names = registered_passes()
    assert all(p.name in names for p in default_passes())
    with pytest.raises(
        OptionError, match=r"(?s)'remove-dead-code' is registered twice.*fix: give it another name"
    ):
        register_pass(names["remove-dead-code"])
    with pytest.raises(OptionError, match="has no name"):
        register_pass(type("Nameless", (GraphPass,), {}))


def test_a_second_run_changes_nothing(trace):
    graph = trace(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), [torch.rand(2, 5, 8)])
    run_pipeline(graph.gm)
    again = run_pipeline(graph.gm)
    assert [p.name for p in again.passes if p.changed] == []


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 4)
        for t in range(3):
            h, c = self.cell(x[:, t], (h, c))
        return h, c


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x):
        self.steps += 1
        self.state[0] = x.sum()
        return x.sum(0) + self.state * self.steps, self.state.view(3, 1)


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        scores = (q @ k.transpose(-1, -2) / 2).masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape[0], x.shape[1], 8)


def aliasing_outputs(x):
    y = x * 2
    return y, y.view(-1), y.clone(), x, x[:], y.t()


def casts(x):
    return x.double().float().half().to(torch.float32) * x.to(x.dtype), x.bool().to(torch.int64).sum()


def indexing(x):
    rows = torch.arange(x.shape[0])
    return x[rows, 0], x[:, None, 1:], x.flip(1)[:, ::2], torch.where(x > 0.5, x, x.neg())


def randomness(x):
    torch.rand(2)
    return x + torch.rand_like(x), torch.nn.functional.dropout(x, 0.5, training=True)


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).eval(), (4, 3)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval(), (2, 3, 8, 8)),
    "conv in training": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train(), (2, 3, 8, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (2, 5, 8)),
    "lstm cell": (Recurrent, (2, 3, 4)),
    "buffers": (Counter, (4, 3)),
    "causal attention": (Causal, (2, 5, 8)),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(8), nn.GroupNorm(2, 6), nn.GELU()).eval(), (3, 6, 8)),
    "aliasing outputs": (lambda: aliasing_outputs, (3, 4)),
    "casts": (lambda: casts, (3, 4)),
    "indexing": (lambda: indexing, (3, 4)),
    "randomness": (lambda: randomness, (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_never_changes_the_meaning(trace, name, dynamic):
    torch.manual_seed(0)
    make, sizes = CASES[name]
    module = make()
    spec = {0: BATCH}
    shapes = None if not dynamic else (spec,) if isinstance(module, nn.Module) else {"args": (spec,)}
    graph = trace(module, [torch.rand(sizes)], shapes)
    others = [[torch.randn(n, *sizes[1:])] for n in (3, 7)] if dynamic else [[torch.randn(sizes)]]
    comparisons = [Comparison(graph.gm, graph.inputs(args)) for args in others]
    options = PipelineOptions(constants=graph.names("CONSTANT_TENSOR"))
    report = run_pipeline(graph.gm, options=options, compare_with=graph.inputs())
    changed = {p.name for p in report.passes if p.changed}
    tolerances = [p.tolerance for p in default_passes() if p.name in changed]
    tolerance = max(tolerances, key=lambda t: t.rtol, default=BITWISE)
    for comparison in comparisons:
        comparison.check(graph.gm, "whole pipeline", tolerance)


UNARY = (aten.sin.default, aten.neg.default, aten.clone.default, aten.detach.default, aten.alias.default, aten.relu.default)  # fmt: skip
BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor)
IN_PLACE = (aten.add_.Tensor, aten.mul_.Tensor, aten.copy_.default)


def random_graph(seed):
    """A graph of [2, 3] and [3, 2] tensors with views, copies, writes, constants, random draws and odd outputs."""
    rng = random.Random(seed)

    def body(graph, *inputs):
        wide, tall = list(inputs), []

        def call(op, *args):
            return graph.call_function(op, args)

        for _ in range(rng.randint(3, 14)):
            pool = tall if tall and rng.random() < 0.3 else wide
            x, y = rng.choice(pool), rng.choice(pool)
            kind = rng.randrange(9)
            if kind == 0:
                pool.append(call(rng.choice(UNARY), x))
            elif kind == 1:
                pool.append(call(rng.choice(BINARY), x, y))
            elif kind == 2:
                (wide if pool is tall else tall).append(call(aten.transpose.int, x, 0, 1))
            elif kind == 3:
                (wide if pool is tall else tall).append(
                    call(aten.reshape.default, x, [2, 3] if pool is tall else [3, 2])
                )
            elif kind == 4:
                pool.append(
                    call(aten.slice.Tensor, x, rng.randrange(2), 0, rng.choice([9, 9223372036854775807]))
                )
            elif kind == 5:
                result = call(
                    rng.choice(IN_PLACE), x, y if rng.random() < 0.7 else call(aten.clone.default, y)
                )
                if rng.random() < 0.5:
                    pool.append(result)
            elif kind == 6:
                wide.append(call(aten.full.default, [2, 3], rng.choice([0.0, 1.0, 2.5])))
            elif kind == 7:
                call(aten.rand.default, [2]) if rng.random() < 0.5 else pool.append(
                    call(aten.rand_like.default, x)
                )
            else:
                pool.append(call(aten.mul.Tensor, x, 1))
        return tuple(rng.choice(wide + tall) for _ in range(rng.randint(1, 4)))

    return body


@pytest.mark.parametrize("seed", range(150))
def test_never_changes_the_meaning_of_a_random_graph(build, seed):
    torch.manual_seed(seed)
    inputs = [torch.randn(2, 3), torch.randn(3, 2).t()]
    graph = build(random_graph(seed), inputs)
    run_pipeline(graph.gm, compare_with=inputs)


def test_cost_grows_linearly():
    def seconds(length):
        graph = fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(2, 3, device="meta")
        node = x
        for i in range(length):
            op, args = ((aten.sin.default, ()), (aten.view.default, ([2, 3],)), (aten.add.Tensor, (x,)))[
                i % 3
            ]
            node = graph.call_function(op, (node, *args))
            node.meta["val"] = x.meta["val"]
        graph.output((node,))
        return sum(p.seconds for p in run_pipeline(fx.GraphModule(nn.Module(), graph)).passes)

    seconds(300)
    small, large = min(seconds(500) for _ in range(3)), min(seconds(4000) for _ in range(2))
    assert large < 8 * small * 3  # quadratic cost would be 64 times
