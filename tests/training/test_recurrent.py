"""Recurrent layers train as in eager: oneDNN's LSTM and dropout between layers included."""

import copy
import functools

import pytest
import torch
from torch import nn

import staticrt
from staticrt.frontend.tracing import trace as tracing

DROPOUT = {"num_layers": 2, "dropout": 0.4}
CASES = [(nn.LSTM, {}), (nn.LSTM, {**DROPOUT, "bidirectional": True}), (nn.GRU, DROPOUT), (nn.RNN, DROPOUT)]


def _losses(run, owner, seed):
    torch.manual_seed(seed)
    owner.zero_grad()
    loss = run(torch.randn(2, 2 + seed // 2, 3))
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), [p.grad for p in owner.parameters()], torch.rand(2)


@pytest.mark.parametrize(("layer", "settings"), CASES)
@pytest.mark.parametrize("way", ["compile", "step"])
def test_gradients_dropout_and_the_random_stream_equal_eagers(layer, settings, way):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = layer(3, 5, **settings)
    theirs = copy.deepcopy(model)

    def step(x):
        loss = model(x)[0].square().sum()
        loss.backward()
        return loss

    if way == "step":
        run = staticrt.compile_step(step)
    else:
        compiled = staticrt.compile(model) if way == "compile" else torch.compile(model, backend="staticrt")
        run = lambda x: compiled(x)[0].square().sum()  # noqa: E731
    for seed in (0, 2):
        got = _losses(run, model, seed)
        want = _losses(lambda x: theirs(x)[0].square().sum(), theirs, seed)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": functools.partial(nn.RNN, nonlinearity="relu"),
}


def _results(run, owner, x, states):
    """Of a call that reads all results unequally: these, and all gradients."""
    owner.zero_grad()
    x, states = x.clone().requires_grad_(), [state.clone().requires_grad_() for state in states]
    out, last = run(x, tuple(states) if len(states) == 2 else states[0]) if states else run(x)
    last = last if isinstance(last, tuple) else (last,)
    scale = torch.arange(out.numel(), dtype=out.dtype).view(out.shape).sin()
    ((out * scale).sum() + sum(state.square().sum() for state in last)).backward()
    return [out, *last, x.grad, *(state.grad for state in states), *(p.grad for p in owner.parameters())]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "settings", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True, "batch_first": True}], ids=str
)
def test_gradients_are_those_of_float64_for_any_length_and_batch(layer, settings):
    torch.manual_seed(1)
    model = LAYERS[layer](7, 19, **settings)
    exact = copy.deepcopy(model).double()
    compiled = staticrt.compile(model)
    depth = 4 if settings.get("bidirectional") else 1
    for steps, batch in ((5, 3), (9, 17), (4, 1), (1, 4)):
        for given in (False, True):
            x = torch.randn((batch, steps, 7) if settings.get("batch_first") else (steps, batch, 7))
            states = [torch.randn(depth, batch, 19) for _ in range((1 + (layer == "lstm")) * given)]
            got = _results(compiled, model, x, states)
            want = _results(exact, exact, x.double(), [state.double() for state in states])
            for g, w in zip(got, want, strict=True):
                torch.testing.assert_close(g, w.float(), rtol=2e-5, atol=2e-5)
    assert all(trace.executor == "native node, joint trace" for trace in compiled.explain().traces)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_one_operator_and_one_trace_serves_all_lengths(layer):
    model = LAYERS[layer](8, 8, batch_first=True)
    compiled = staticrt.compile(model)
    for steps in (200, 150, 300, 7):
        compiled(torch.randn(2, steps, 8))[0].square().sum().backward()
    traces = compiled.explain().traces
    assert len(traces) == 2
    for trace in traces:
        assert dict(trace.operators)["staticrt.recurrent_steps.default"] == 1
        assert sum(count for _kind, count in trace.kinds) < 80


def test_what_the_operator_does_not_compute_is_recorded_step_by_step():
    for model in (nn.LSTM(3, 6, proj_size=2), nn.GRU(3, 6).double()):
        compiled = staticrt.compile(model)
        x = torch.randn(3, 2, 3, dtype=next(model.parameters()).dtype)
        compiled(x)[0].sum().backward()
        got = [p.grad for p in model.parameters()]
        model.zero_grad()
        model(x)[0].sum().backward()
        torch.testing.assert_close(got, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)
        assert "recurrent_steps" not in str(compiled.explain().traces[0].operators)


@pytest.mark.parametrize("layer", ["gru", "tanh"])  # oneDNN's LSTM has no second derivative in eager
@pytest.mark.parametrize("way", ["compile", "step"])
def test_second_derivatives_equal_eagers(layer, way):
    torch.manual_seed(2)
    model = LAYERS[layer](3, 5)
    x = torch.randn(4, 2, 3)

    def penalty(run, x):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        out, _last = run(leaf)
        (gradient,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        loss = gradient.square().sum()
        loss.backward()
        return loss.detach()

    want = [penalty(model, x), *(p.grad for p in model.parameters())]
    run = staticrt.compile_step(lambda x: penalty(model, x)) if way == "step" else None
    compiled = staticrt.compile(model)
    for _ in range(2):
        got = [run(x) if run else penalty(compiled, x), *(p.grad for p in model.parameters())]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_tracing_leaves_onednn_as_it_was():
    assert torch._C._get_mkldnn_enabled()
    torch._dynamo.reset()
    staticrt.compile(nn.LSTM(3, 5))(torch.randn(4, 2, 3))[0].sum().backward()
    assert torch._C._get_mkldnn_enabled()


class _Cells(nn.Module):
    """Steps of a cell by hand; x: float32 [batch, steps, 5]."""

    def __init__(self, cell, **settings):
        super().__init__()
        self.cell = cell(5, 6, **settings)

    def forward(self, x):
        state, total = None, 0
        for step in x.unbind(1):
            state = self.cell(step, state)
            total = total + sum(state if isinstance(state, tuple) else (state,))
        return total


_RELU_CELL = functools.partial(nn.RNNCell, nonlinearity="relu")


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell, _RELU_CELL])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_cells_by_hand_are_recorded_without_writes(cell, bias, twice, monkeypatch):
    """torch's composite kernels of cells write into their gates, which costs a third of a first call to undo."""
    functionalized = []
    functionalize = tracing.functionalize
    monkeypatch.setattr(
        tracing,
        "functionalize",
        lambda *args: functionalized.append(functionalize(*args)) or functionalized[-1],
    )
    torch.manual_seed(3)
    model = _Cells(cell, bias=bias)
    compiled = staticrt.compile(model)

    def results(run, x):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        out = run(leaf)
        loss = out.square().sum()
        if twice:
            (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
            loss = slope.square().sum()
        loss.backward()
        return [out, leaf.grad, *(p.grad for p in model.parameters())]

    for batch in (4, 1, 3):
        x = torch.randn(batch, 7, 5)
        torch.testing.assert_close(results(compiled, x), results(model, x), rtol=1e-4, atol=1e-5)
    assert not functionalized
    assert {t.executor for t in compiled.explain().traces} == {"native node, joint trace"}
