"""Norms of half-precision values with float parameters, as under autocast: their statistics are float."""

import copy

import pytest
import torch
from torch import nn

import staticrt

aten = torch.ops.aten

MODELS = {
    "layer": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)), (3, 8)),
    "group": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()), (2, 3, 7, 7)),
    "batch": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (2, 3, 7, 7)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_under_autocast(compiler, name, dtype):
    make, sizes = MODELS[name]
    model = make()
    theirs = copy.deepcopy(model)
    compiled = compiler(model)
    for _ in range(3):
        x = torch.randn(*sizes)
        for run, owner in ((compiled, model), (theirs, theirs)):
            owner.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = run(x).float().square().mean()
            loss.backward()
        for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
            assert mine.grad.dtype == other.grad.dtype
            torch.testing.assert_close(mine.grad, other.grad, rtol=5e-2, atol=2e-2)


def test_a_step_under_autocast():
    model = MODELS["layer"][0]()
    x = torch.randn(3, 8)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        return loss

    want = step().detach()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = staticrt.compile_step(step, fullgraph=True)
    torch.testing.assert_close(compiled(), want, rtol=5e-2, atol=2e-2)
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients, rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize(
    "norm",
    [
        lambda x, w, b: aten.native_layer_norm(x, [3], w, b, 1e-5),
        lambda x, w, b: aten.native_group_norm(x, w, b, 2, 3, 3, 3, 1e-5),
        lambda x, w, b: aten._native_batch_norm_legit_no_training(x, w, b, b + 0.1, w * 2, 0.1, 1e-5),
    ],
)
def test_dtypes_of_the_statistics(norm):
    x = torch.randn(2, 3, 3, dtype=torch.bfloat16)
    w, b = torch.rand(3), torch.rand(3)
    compiled = staticrt.compile(norm)
    want = norm(x, w, b)
    for _ in range(4):
        with torch.no_grad():
            got = compiled(x, w, b)
        assert [t.dtype for t in got] == [t.dtype for t in want]
        torch.testing.assert_close(got, want)
