"""Incoming gradients of results that lie permuted in memory, through both entry points."""

import pytest
import torch
from torch import nn

from staticrt.training import debug_state


class Permuted(nn.Module):
    """A result whose dimensions lie in another order in memory, and a backward that views its gradient so."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        y = self.inner(x.permute(self.dims).contiguous())
        back = [self.dims.index(d) for d in range(len(self.dims))]
        return y.permute(back) + y.mean()


@pytest.mark.parametrize(
    "options", [{"backward_node": "native"}, {"backward_node": "aot"}], ids=["native", "aot"]
)
@pytest.mark.parametrize("dims", [(1, 0, 2), (1, 2, 0, 3), (2, 0, 1, 3), (3, 1, 0, 2, 4)])
def test_results_that_lie_permuted(dims, options):
    torch.manual_seed(0)
    model = Permuted(dims)
    run = torch.compile(model, backend="staticrt", options=options, dynamic=False)
    shape = [2, 3, 4, 5][: len(dims) - 1]
    for layout in ("contiguous", "as the result", "expanded"):
        x = torch.randn(*shape, 6, requires_grad=True)
        found = []
        for function in (run, model):
            out = function(x)
            seed = torch.linspace(-1, 1, out.numel()).view(out.shape)
            if layout == "as the result":
                seed = torch.empty_like(out).copy_(seed)
            elif layout == "expanded":
                seed = seed[:1].expand(out.shape)
            found.append(torch.autograd.grad(out, [x, *model.parameters()], seed))
        torch.testing.assert_close(found[0], found[1])
    assert debug_state()[-1]["node"] == options["backward_node"]


def test_attention_with_added_keys(compiler):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True)

    def attend(x):
        y, weights = model(x, x, x, average_attn_weights=False)
        return y + weights.mean()

    run = compiler(attend)
    for length in (4, 4, 5):
        x = torch.randn(2, length, 16)
        grads = [torch.autograd.grad(f(x).square().sum(), list(model.parameters())) for f in (run, attend)]
        torch.testing.assert_close(grads[0], grads[1])
