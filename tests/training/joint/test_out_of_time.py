"""A joint trace that runs out of time at any of its checks: the call answers as in eager, the process lives."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.frontend import budget
from staticrt.frontend.tracing import trace as tracing
from tests.support import run_fresh

SCRIPT = """
import copy, sys
import torch
from torch import nn
import staticrt
from staticrt.frontend import budget

nth = int(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
eager = copy.deepcopy(model)
checks = 0

def check():
    global checks
    checks += 1
    if checks == nth:
        raise budget.OutOfTime

budget.check = check
compiled = staticrt.compile(model)
x = torch.randn(3, 4)
for _ in range(2):
    compiled(x).sum().backward()
    eager(x).sum().backward()
for ours, theirs in zip(model.parameters(), eager.parameters()):
    torch.testing.assert_close(ours.grad, theirs.grad)
print("raised" if checks >= nth else "not reached")
"""


@pytest.mark.parametrize("nth", range(2, 23, 4))  # the call has 23 checks
def test_time_ends_beneath_autograd(nth):
    done = run_fresh(SCRIPT, nth)
    assert done.stdout.split() == ["raised"]


AFTER_SPLITS = """
import torch
from torch import nn
import staticrt

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        if x.shape[0] == 3:
            for _ in range(2000):
                x = x + 1
        return self.linear(x)

staticrt.compile(nn.Linear(4, 4))(torch.randn(2, 4)).sum().backward()  # what the first trace loads
model = Slow()
attributes = set(vars(model))
compiled = staticrt.compile(model, trace_seconds=0.1)
for rows in (2, 3, 2):
    compiled(torch.randn(rows, 4)).sum().backward()
assert set(vars(model)) == attributes
print(compiled.explain().traces[0].calls, *[r for r in str(compiled.explain()).splitlines() if "graph 0" in r])
"""


def test_traces_serve_on_after_dynamo_ran():
    done = run_fresh(AFTER_SPLITS)
    assert done.stdout.startswith("2 ")
    assert "joint trace" in done.stdout


def test_models_too_slow_to_trace_with_symbols_are_traced_for_each_size(monkeypatch):
    tries = []

    def record(request, *rest):
        tries.append(request.sizing.is_constant)
        if not request.is_constant:
            raise budget.OutOfTime
        return recorded(request, *rest)

    recorded = tracing._record
    monkeypatch.setattr(tracing, "_record", record)
    model = nn.Linear(4, 4)
    compiled = staticrt.compile(model)
    for rows in (2, 3, 5, 3, 2):
        x = torch.randn(rows, 4)
        gradients = []
        for run in (compiled, model):
            model.zero_grad()
            run(x).square().sum().backward()
            gradients.append(model.weight.grad)
        torch.testing.assert_close(*gradients)
    assert tries == [True, False, True, True]
    assert [trace.calls for trace in compiled.explain().traces] == [2, 2, 1]
    assert all("joint trace" in trace.executor for trace in compiled.explain().traces)
