"""Group normalisation in training where a dimension of size 1 hides the layout of an image."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from tests.support.compilers import each_compiler


class Attending(nn.Module):
    """What diffusion models do between convolutions: pixels as tokens, and back."""

    def __init__(self):
        super().__init__()
        self.before = nn.GroupNorm(2, 8)
        self.tokens = nn.Linear(8, 8)
        self.after = nn.GroupNorm(4, 8, affine=False)
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        batch, channels, height, width = x.shape
        tokens = self.before(self.convolution(x)).view(batch, channels, height * width).transpose(1, 2)
        image = self.tokens(tokens).transpose(-1, -2).reshape(batch, channels, height, width)
        return self.convolution(nn.functional.silu(self.after((image + x) / 2.0)))


@pytest.mark.parametrize("shape", [(1, 8, 6, 6), (3, 8, 6, 6), (2, 8, 1, 6), (1, 8, 1, 5)])
@pytest.mark.parametrize("executor", ["auto", "reference"])
@each_compiler
def test_group_norm_of_a_transposed_view(compiler, executor, shape):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Attending()
    compiled = compiler(model, executor=executor)
    given = torch.randn(shape)
    results = []
    for run in (compiled, model):
        x = given.clone().requires_grad_()
        model.zero_grad()
        out = run(x)
        (out * torch.linspace(0, 1, out.numel()).view(shape)).sum().backward()
        results.append([out.detach(), x.grad, *(p.grad.clone() for p in model.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


class Tokens(nn.Module):
    """Pixels of a normalised image as tokens: the gradient comes back permuted."""

    def __init__(self, training):
        super().__init__()
        self.convolution, self.norm, self.linear = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.train(training)

    def forward(self, x):
        return self.linear(self.norm(self.convolution(x)).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shapes", [[(2, 3, 3), (1, 3, 3), (3, 3, 3)], [(2, 3, 3), (2, 1, 3), (2, 3, 1)]])
def test_batch_norm_of_one_image_after_several(shapes, training):
    torch.manual_seed(0)
    model = Tokens(training)
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    for batch, height, width in shapes:
        given = torch.randn(batch, 4, height, width)
        results = []
        for run, owner in ((compiled, model), (eager, eager)):
            x = given.clone().requires_grad_()
            owner.zero_grad()
            out = run(x)
            (out * torch.arange(out.numel()).view_as(out)).sum().backward()
            results.append([out, x.grad, *(p.grad for p in owner.parameters())])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)
