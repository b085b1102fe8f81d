"""What rare work takes of the process' memory: first runs hold no more than eager does at once, and nothing is
left behind that no later call uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import staticrt
from staticrt.models.bench.memory import anonymous_bytes, peak_during, trim
from tests.support import run_fresh

MIB = 1 << 20

needs_figures = pytest.mark.skipif(
    peak_during(lambda: None) is None, reason="the system does not tell resident memory"
)


class Chain(nn.Module):
    """Forty values of 4 MiB, of which two live at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = torch.softmax(x, -1)
        return x.sum()


@needs_figures
@pytest.mark.parametrize("options", [{}, {"prepared": False}], ids=["prepared", "general"])
def test_the_first_run_frees_values_after_their_last_use(options: dict[str, bool]) -> None:
    x = torch.rand(1024, 1024)
    staticrt.compile(Chain().eval(), **options)(torch.rand(3, 5))  # what a first trace loads
    trim()
    before = anonymous_bytes()
    assert before is not None
    with torch.no_grad():
        eager_peak = peak_during(lambda: Chain()(x))
        trim()
        fresh = staticrt.compile(Chain().eval(), **options)
        peak = peak_during(lambda: fresh(x))
    assert eager_peak is not None
    assert peak is not None
    assert peak - before < eager_peak - before + 80 * MIB  # all values together: 160 MiB
    torch.testing.assert_close(fresh(x), Chain()(x))


LEFTOVERS = """
import torch, staticrt
from staticrt.models.bench.memory import anonymous_bytes, trim
from staticrt.models.resnet import resnet50
torch.set_num_threads(1)
model = resnet50().eval()
x = torch.rand(1, 3, 224, 224)
with torch.no_grad():
    compiled = staticrt.compile(model)
    for _ in range(4):
        compiled(x)
before = anonymous_bytes()
trim()
print(before - anonymous_bytes())
"""


@needs_figures
def test_packing_leaves_nothing_behind() -> None:
    """A ResNet-50, of which 27 MiB of weights are packed."""
    done = run_fresh(LEFTOVERS)
    assert int(done.stdout) < 8 * MIB
