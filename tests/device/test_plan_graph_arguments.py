"""`plan_graphs=True`: which bytes of its arguments a launch copies, and which arguments it cannot take."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from tests.device.test_compiled_graphs import compare_kept
from tests.device.test_plan_graphs import SIM, check, graphs_of


@torch.no_grad()
@pytest.mark.parametrize(
    "lay",
    [
        lambda base: base[:4, :8].contiguous(),
        lambda base: base[5:9, :8].clone().t().contiguous().t(),
        lambda base: base[2:6, 3:11],
        lambda base: base[0, :8].expand(4, 8),
        lambda base: base[:0, :8].contiguous(),
        lambda base: base.view(-1)[7:39].view(4, 8),
    ],
)
def test_arguments_of_every_layout(lay, order):
    twin = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    compiled = staticrt.compile(copy.deepcopy(twin).to(SIM), plan_graphs=True)
    for _ in range(6):
        base = torch.randn(9, 20)
        check(compiled, twin, lay(base), lay(base.to(SIM)))
    assert graphs_of(compiled) == (1, 4, [])


@torch.no_grad()
def test_an_argument_that_cannot_be_copied_by_element_runs_step_by_step(order):
    compiled = staticrt.compile(torch.tanh, plan_graphs=True)
    for _ in range(5):
        base = torch.randn(4, 200)
        x, there = (each[:, None, ::20].expand(4, 3, 10) for each in (base, base.to(SIM)))
        check(compiled, torch.tanh, x, there)
    assert graphs_of(compiled) == (
        0,
        0,
        ["an argument cannot be copied: its elements overlap, with gaps between them"],
    )


@torch.no_grad()
def test_bytes_between_the_elements_of_an_argument_are_not_copied(order):
    """Another stream writes them during the call."""
    compiled = staticrt.compile(torch.tanh, plan_graphs=True)
    base, other = torch.randn(6, 16), torch.randn(6, 8)
    there, other_there = base.to(SIM), other.to(SIM)
    current, side = torch.accelerator.current_stream(0), torch.Stream(SIM)
    kept = []
    for _ in range(6):
        side.wait_stream(current)
        with side:
            there[:, 8:].copy_(other_there)
        kept.append((compiled(there[:, :8]), torch.tanh(base[:, :8])))
    current.wait_stream(side)
    compare_kept(kept)
    assert graphs_of(compiled) == (1, 4, [])


@torch.no_grad()
def test_an_argument_that_shares_written_memory_runs_step_by_step(order):
    def forward(buffer, x):
        buffer.add_(1)
        return buffer * x

    compiled = staticrt.compile(forward, plan_graphs=True)
    whole, twin = torch.ones(16, device=SIM), torch.ones(16)
    ways = {
        "apart": lambda base: torch.full_like(base[:8], 3.0),
        "the same": lambda base: base[:8],
        "beside it": lambda base: base[8:],
    }
    for number, way in enumerate([*ways] * 4):
        got = compiled(whole[:8], ways[way](whole))
        torch.testing.assert_close(got.cpu(), forward(twin[:8], ways[way](twin)))
        if way == "beside it" and number > 3:  # the plan is there, and would be launched
            assert graphs_of(compiled)[2] == ["an argument shares memory with one that it writes"]
    assert graphs_of(compiled)[1] > 0
    torch.testing.assert_close(whole.cpu(), twin)


@torch.no_grad()
def test_arguments_that_nothing_reads_are_not_copied(sim):
    def forward(x, like, viewed):
        return x.expand(like.shape[0], -1) + 1, viewed.t(), like

    compiled = staticrt.compile(forward, plan_graphs=True)
    copies = sim.calls("capture_copy")
    for _ in range(6):
        like, viewed = torch.randn(3, 4, device=SIM), torch.randn(2, 5, device=SIM)
        x = torch.randn(1, 4)
        got, view, same = compiled(x.to(SIM), like, viewed)
        torch.testing.assert_close(got.cpu(), forward(x, like, viewed)[0])
        assert view.data_ptr() == viewed.data_ptr()
        assert same is like
    assert graphs_of(compiled) == (1, 4, [])
    assert sim.calls("capture_copy") == copies + 2  # the first argument, and a result
