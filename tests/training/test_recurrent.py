"""Recurrent layers train as in eager: oneDNN's LSTM and dropout between layers included."""

import copy

import pytest
import torch
from torch import nn

import staticrt

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


def test_tracing_leaves_onednn_as_it_was():
    assert torch._C._get_mkldnn_enabled()
    torch._dynamo.reset()
    staticrt.compile(nn.LSTM(3, 5))(torch.randn(4, 2, 3))[0].sum().backward()
    assert torch._C._get_mkldnn_enabled()
