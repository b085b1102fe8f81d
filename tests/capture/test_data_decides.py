"""Compiled modules whose outputs data decides, with `graphs=True`: replays cannot repeat a number or a size that was read."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.capture import GraphContext

VALUES = [[1.0, 1.0, 1.0], [-1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, 2.0, -1.0]]


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "a number": lambda x: (x * 2).sum().item(),
    "a list of numbers": lambda x: (x * 2).tolist(),
    "nonzero": lambda x: (x + 1).nonzero(),
    "a mask": lambda x: x[x > 0] * 2,
    "unique": lambda x: torch.unique(x),
    "where, which torch does not tag": lambda x: torch.where(x > 0)[0] + 1,
    "repeat_interleave, neither": lambda x: torch.arange(3).repeat_interleave((x > 0).long()),
    "one of several": lambda x: (x * 2, (x > 0).nonzero(), x.sum().item()),
    "after a write": lambda x: (x.add_(1), x[x > 0])[1],
    "a sum of as many as there are": lambda x: x[x > 0].sum(),
}


@pytest.fixture
def context():
    with GraphContext("cpu") as ctx:
        yield ctx


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_call_gives_its_own_answer(context, name):
    function = FUNCTIONS[name]
    compiled = staticrt.compile(Of(function), graphs=context)
    for values in VALUES * 2:
        given, same = torch.tensor(values), torch.tensor(values)
        want, got = function(given), compiled(same)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert torch.equal(same, given)
    assert context.explain().captures == 0
    assert "depend on values" in context.explain().skips[0].reason


def test_what_sizes_decide_is_captured(context):
    compiled = staticrt.compile(Of(lambda x: (x * x.shape[0], x.shape[0])), graphs=context)
    for size in (3, 3, 4, 3):
        out, number = compiled(torch.ones(size))
        assert number == size
        assert torch.equal(out, torch.full((size,), float(size)))
    assert (context.explain().captures, context.explain().skips) == (2, ())
