"""What staticrt has compiled, inside a function given to `torch.compile`: one graph break, nothing of ours is traced."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import staticrt
from staticrt.graphs import GraphContext


@pytest.fixture(autouse=True)
def _no_counts(fresh_dynamo):
    counters.clear()


def head():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.inner = inner

    def forward(self, x):
        return self.inner(self.before(x) + 1) * 2


def saved(tmp_path):
    path = str(tmp_path / "head.srt")
    staticrt.save(staticrt.compile(head(), example_inputs=(torch.randn(3, 8),)), path)
    return staticrt.load(path)


MAKERS = {
    "compile": lambda _path: staticrt.compile(head()),
    "graphs": lambda _path: GraphContext("cpu").wrap(lambda x: torch.relu(x + 1)),
    "archive": saved,
}


@pytest.mark.parametrize("backend", ["eager", "staticrt"])
@pytest.mark.parametrize("made", MAKERS)
def test_the_inner_one_runs_as_it_is(made, backend, tmp_path):
    inner = MAKERS[made](tmp_path)
    outer = Outer(inner) if isinstance(inner, nn.Module) else lambda x: inner(x * 3) - 1
    compiled = torch.compile(outer, backend=backend)
    with torch.no_grad():
        for rows in (3, 5, 7, 3, 3):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), outer(x))
    assert counters["stats"]["unique_graphs"] <= 4  # before and after it, for one size and for any


def test_gradients_through_the_inner_one():
    outer = Outer(staticrt.compile(head()))
    compiled = torch.compile(outer, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(3, 8, requires_grad=True)
        (ours,) = torch.autograd.grad(compiled(x).sum(), x)
        (eagers,) = torch.autograd.grad(outer(x).sum(), x)
        torch.testing.assert_close(ours, eagers)


def test_a_step_inside():
    model = nn.Linear(8, 1)
    optimizer = staticrt.training.optim.SGD(model.parameters(), lr=0.01)

    @staticrt.compile_step
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = torch.compile(lambda x: step(x + 1).detach() * 2, backend="eager")
    x = torch.randn(4, 8)
    losses = [run(x).item() for _ in range(6)]
    assert losses[-1] < losses[0]
    assert step.explain().traces
