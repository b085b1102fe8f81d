"""Backwards that compiled autograd traces: the forward and what it makes of the backward are both captured."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd

from staticrt.graphs import GraphContext
from tests.support.graph_harness import device


@pytest.mark.filterwarnings("ignore:staticrt. graph runs uncaptured. mutation")
@pytest.mark.parametrize("name", ["cpu", "cpu_copy"])
def test_training_through_compiled_autograd(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    mine = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    theirs = copy.deepcopy(mine)
    with GraphContext("cpu", backend=device(name)) as context:
        options = {"graphs": context}
        run = torch.compile(mine, backend="staticrt", options=options)
        backward = torch.compile(backend="staticrt", options=options)
        for step in range(6):
            x = torch.randn(3, 4)
            with compiled_autograd._enable(backward):
                run(x).square().mean().backward()  # accumulates
            theirs(x).square().mean().backward()
            for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad)
                if step == 3:
                    p.grad = q.grad = None
        report = context.explain()
        replayed = {node.path[-1] for node in report.nodes if node.replays}
        if name == "cpu":
            assert replayed == {"forward", "graph"}
            assert report.copied_bytes == 0
            assert report.skips == ()
        else:  # gradients are added to where they are, which is not a fixed place
            assert replayed == {"forward"}
            assert all("mutation on input" in skip.reason for skip in report.skips)
        del run, backward
    torch._dynamo.reset()
