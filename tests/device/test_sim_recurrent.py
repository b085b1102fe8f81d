"""Recurrent layers on "sim", whose fused cells torch has for accelerators alone, beside the CPU's layers and cells."""

import copy

import pytest
import torch
from torch import nn


def gradients(module, x, device):
    """Results of a call and gradients of their weighted sum, on the CPU."""
    module = copy.deepcopy(module).to(device)
    x = x.to(device).requires_grad_()
    result = torch.utils._pytree.tree_leaves(module(x))
    weights = [torch.linspace(-1, 2, part.numel()).reshape(part.shape).to(device) for part in result]
    sum((part * weight).sum() for part, weight in zip(result, weights, strict=True)).backward()
    return [t.detach().cpu() for t in [*result, x.grad, *(p.grad for p in module.parameters())]]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell])
def test_results_and_gradients_are_the_cpus(kind, bias, order):
    torch.manual_seed(0)
    cell = kind in (nn.LSTMCell, nn.GRUCell)
    module = kind(6, 5, bias=bias) if cell else kind(6, 5, 2, bias=bias, bidirectional=True)
    x = torch.randn(3, 6) if cell else torch.randn(4, 3, 6)
    torch.testing.assert_close(gradients(module, x, "sim"), gradients(module, x, "cpu"))


@torch.no_grad()
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_sequences_of_no_batch_and_of_doubles(kind):
    module = kind(6, 5).double()
    for x in (torch.randn(4, 0, 6).double(), torch.randn(4, 6).double()):
        expected = torch.utils._pytree.tree_leaves(module.cpu()(x))
        found = torch.utils._pytree.tree_leaves(module.to("sim")(x.to("sim")))
        torch.testing.assert_close([part.cpu() for part in found], expected)


def test_a_gradient_of_one_result_alone():
    """Only the cell's state, only its output: the other's gradient is undefined."""
    torch.manual_seed(0)
    module, x = nn.LSTMCell(6, 5), torch.randn(3, 6)
    for which in (0, 1):
        found = []
        for device in ("cpu", "sim"):
            here = copy.deepcopy(module).to(device)
            here(x.to(device))[which].sum().backward()
            found.append([p.grad.cpu() for p in here.parameters()])
        torch.testing.assert_close(*found)
