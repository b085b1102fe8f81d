"""A joint trace that runs out of time at any of its checks: the call answers as in eager, the process lives."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(nth)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["raised"]
