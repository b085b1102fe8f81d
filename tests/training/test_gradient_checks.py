"""Numerical gradients, first and second, of compiled functions through both entry points."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from staticrt.models import zoo

# A signature's first run takes other kernels than later ones, which may round otherwise.
LIMITS = {"fast_mode": True, "nondet_tol": 1e-12}


def _double(*sizes):
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


# function, sizes of its arguments
FUNCTIONS = {
    "products": (lambda x, w: torch.tanh(x @ w) * w.sum(), ((3, 4), (4, 2))),
    "norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b).sigmoid(), ((3, 4), (4,), (4,))),
    "softmax": (lambda x, w: F.softmax(x, -1) @ F.log_softmax(w, 0), ((2, 3), (3, 2))),
    "convolution": (
        lambda x, w, b: F.avg_pool2d(F.conv2d(x, w, b, padding=1), 2),
        ((1, 2, 4, 4), (2, 2, 3, 3), (2,)),
    ),
    "views": (lambda x: torch.cat([x.t()[1:], x.t()[:1].exp()]).unflatten(0, (3, 1)).sum(1), ((2, 3),)),
    "where": (lambda x, w: torch.where(x > 0, x * w, w.cos()), ((3, 3), (3,))),
    "two results": (lambda x, w: ((x * w).sin(), x.square().mean(0) / (1 + w * w)), ((2, 3), (3,))),
    "maxima": (lambda x: x.amax(0) * x.logsumexp(0), ((4, 3),)),
    "attention": (lambda q, k, v: F.softmax(q @ k.mT / 2, -1) @ v, ((1, 2, 2), (1, 2, 2), (1, 2, 2))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(compiler, name):
    function, sizes = FUNCTIONS[name]
    compiled = compiler(function)
    arguments = tuple(_double(*size) for size in sizes)
    assert torch.autograd.gradcheck(compiled, arguments, **LIMITS)
    assert torch.autograd.gradgradcheck(compiled, arguments, **LIMITS)


@pytest.mark.parametrize("budget", [1.0, 0.0])
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)), (2, 3)),
        (lambda: nn.Sequential(nn.Conv1d(2, 2, 2), nn.GroupNorm(1, 2), nn.SiLU(), nn.Flatten()), (1, 2, 3)),
        (lambda: nn.LSTMCell(2, 3), (2, 2)),
    ],
)
def test_modules(compiler, make, sizes, budget):
    module = make().double()
    compiled = compiler(module, activation_memory_budget=budget)

    def function(x, *_parameters):  # gradcheck edits the parameters themselves
        return compiled(x)

    x, parameters = _double(*sizes), list(module.parameters())
    assert torch.autograd.gradcheck(function, (x, *parameters), **LIMITS)
    assert torch.autograd.gradgradcheck(function, (x, *parameters), **LIMITS)


@pytest.mark.parametrize(
    "name", ["mlp", "wide_deep", "dlrm_b1", "encoder_tiny", "lstm_tagger", "graph_network"]
)
def test_networks_of_the_zoo(compiler, name):
    """By their smallest parameters: a numerical gradient runs the network again for each."""
    entry = zoo.get(name)
    model = entry.build().double()
    variant = min(entry.variants, key=lambda v: sum(t.numel() for t in entry.inputs(0, v)))
    arguments = [t.double() if t.is_floating_point() else t for t in entry.inputs(0, variant)]
    compiled = compiler(model)
    parameters = sorted(model.parameters(), key=torch.Tensor.numel)[:4]
    for parameter in model.parameters():
        parameter.requires_grad_(any(parameter is p for p in parameters))

    def function(*_parameters):
        return compiled(*arguments)

    assert torch.autograd.gradcheck(function, parameters, **LIMITS)
    assert torch.autograd.gradgradcheck(function, parameters, **LIMITS)
