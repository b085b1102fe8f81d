"""Group normalisation in training where a dimension of size 1 hides the layout of an image."""

import pytest
import torch
from torch import nn

import staticrt


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
@pytest.mark.parametrize("compiler", ["staticrt.compile", "torch.compile"])
def test_group_norm_of_a_transposed_view(compiler, executor, shape):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Attending()
    if compiler == "staticrt.compile":
        compiled = staticrt.compile(model, executor=executor)
    else:
        compiled = torch.compile(model, backend="staticrt", options={"executor": executor})
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
