"""Random numbers that fill memory in place come in the order of that memory, whatever its layout: as in eager."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import staticrt

SHAPES = [(2, 8, 5, 5), (3, 8, 4, 6), (1, 8, 5, 5)]
LAYOUTS = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
}


def of_view(x, view, fill):
    z = torch.ones_like(x)
    fill(view(z))
    return x * z


def of_rolled(x):
    z = x.detach().clone()
    z[:1].zero_()
    return x * z.roll(1, 0).bernoulli_(0.5)


MODELS = {
    "bernoulli_": lambda x: x * torch.empty_like(x).bernoulli_(),
    "bernoulli_ 0.3": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "bernoulli_ tensor": lambda x: x * torch.empty_like(x).bernoulli_(x.detach().sigmoid()),
    "bernoulli out": lambda x: x * torch.bernoulli(x.detach().sigmoid(), out=torch.empty_like(x.detach())),
    "rand out": lambda x: x * torch.rand(x.shape, out=torch.empty_like(x.detach())),
    "rand out of doubles": lambda x: x * torch.rand(x.shape, out=torch.empty(x.shape, dtype=torch.double)),
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.3, True),
    "dropout in place": lambda x: functional.dropout(x * 2, 0.3, True, True),
    "dropout": lambda x: functional.dropout(x, 0.3, True),
    "normal_": lambda x: x * torch.empty_like(x).normal_(),
    "slice, bernoulli_": lambda x: of_view(x, lambda z: z[:, 1:], lambda z: z.bernoulli_(0.5)),
    "slice, normal_": lambda x: of_view(x, lambda z: z[:, 1:], lambda z: z.normal_()),
    "transposed, bernoulli_": lambda x: of_view(x, lambda z: z.transpose(1, 2), lambda z: z.bernoulli_(0.5)),
    "rolled, bernoulli_": of_rolled,
    "drop path": lambda x: x * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.5),
}


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Halved(torch.autograd.Function):
    """Nothing that a graph of tensors could hold."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.asarray(x.detach().numpy() / 2))

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def check(model, fast, layout, grad):
    for seed, shape in enumerate(SHAPES):
        x = LAYOUTS[layout](torch.rand(shape, generator=torch.Generator().manual_seed(seed)))
        found = []
        for run in (model, fast):
            torch.manual_seed(seed)
            own = x.detach().requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                out = run(own)
            if grad:
                out.square().sum().backward()
            found.append([out.detach(), own.grad, torch.get_rng_state()])
        torch.testing.assert_close(*found)
        assert found[0][0].stride() == found[1][0].stride()


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_draws_are_those_of_eager(name, layout, grad):
    model = Model(MODELS[name])
    check(model, staticrt.compile(model), layout, grad)


@pytest.mark.parametrize("name", ["bernoulli_ 0.3", "alpha dropout", "dropout in place", "slice, normal_"])
def test_draws_beside_what_no_joint_trace_holds_are_those_of_eager(name):
    model = Model(lambda x: MODELS[name](Halved.apply(x) * 3) + x)
    check(model, staticrt.compile(model), "channels last", True)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("name", "layout", "is_recorded"),
    [
        ("bernoulli_ 0.3", "row-major", True),
        ("bernoulli_ 0.3", "channels last", False),
        ("dropout", "channels last", True),
        ("normal_", "channels last", True),
        ("drop path", "channels last", True),
        ("dropout in place", "row-major", True),
    ],
)
def test_what_draws_by_memory_runs_eagerly_and_nothing_else(name, layout, is_recorded, grad):
    model = Model(MODELS[name])
    fast = staticrt.compile(model)
    check(model, fast, layout, grad)
    assert ("draws in the order of memory" not in str(fast.explain())) is is_recorded
    assert ("graph 0" in str(fast.explain())) is is_recorded
