"""Nested tensors through `torch.compile(backend="staticrt")`: their ragged size goes around the Programs."""

import pytest
import torch

from staticrt.training import debug_state


def _ragged(lengths, grad=False):
    return [torch.randn(length, 8, requires_grad=grad) for length in lengths]


def test_a_layer_trained_on_ragged_batches():
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4)
    run = torch.compile(lambda batch: layer(batch).sin(), backend="staticrt")
    for lengths in ((3, 5), (3, 5), (2, 7, 1), (4, 4)):
        batch = torch.nested.nested_tensor(_ragged(lengths), layout=torch.jagged)
        found = []
        for function in (run, lambda batch: layer(batch).sin()):
            layer.zero_grad()
            out = function(batch)
            out.values().square().sum().backward()
            found.append([out.values().detach(), out.offsets(), layer.weight.grad, layer.bias.grad])
        torch.testing.assert_close(found[0], found[1])
    assert any(region["calls"] and not region["failed"] for region in debug_state())


@pytest.mark.parametrize("executor", ["auto", "reference"])
def test_gradients_of_the_pieces(executor):
    torch.manual_seed(0)
    run = torch.compile(lambda batch: (batch * 2).sin(), backend="staticrt", options={"executor": executor})
    pieces = _ragged((3, 5), grad=True)
    for _ in range(2):
        out = run(torch.nested.as_nested_tensor(pieces, layout=torch.jagged))
        got = torch.autograd.grad(out.values().sum(), pieces)
        torch.testing.assert_close(got, tuple(2 * (2 * piece).cos() for piece in pieces))
