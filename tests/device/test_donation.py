"""Donated arguments on devices: a result and values of the run lie where they were, in the order of the call's stream."""

import pytest
import torch

import staticrt
from staticrt.errors import InputError
from staticrt.graphs.backend import get_backend


def step(state, update):
    return torch.tanh(state * 0.9 + update), (update * 2).sum()


@torch.no_grad()
def test_a_result_takes_the_bytes_of_a_donated_argument(order):
    fast = staticrt.compile(step, donate="state")
    state = torch.randn(64, 64)
    there = state.to("sim:0")
    for _ in range(5):
        update = torch.randn(64, 64)
        state, total = step(state, update)
        address, old = there.data_ptr(), there
        there, there_total = fast(there, update.to("sim:0"))
        with pytest.raises(RuntimeError, match="'state' was donated to a compiled call"):
            old + 1
        torch.testing.assert_close(there.cpu(), state)
        torch.testing.assert_close(there_total.cpu(), total)
    assert there.data_ptr() == address
    there.add_(1)


@torch.no_grad()
def test_values_of_the_run_lie_where_the_argument_was():
    def function(x):
        y = x.index_select(0, torch.arange(x.shape[0], device=x.device).flip(0))  # the argument's last use
        return (y.exp().flip(0) @ y + 1).sum()

    x = torch.rand(128, 128)
    arenas = {}
    for donate in ((), ("x",)):
        fast = staticrt.compile(function, donate=donate, poison=True)
        for _ in range(3):
            torch.testing.assert_close(fast(x.to("sim:0")).cpu(), function(x))
        (signature,) = fast.explain().traces[0].signatures
        arenas[donate] = signature.arena_bytes
    assert arenas["x",] <= arenas[()] - x.nbytes
    assert signature.donated_bytes >= x.nbytes


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"prepared": False}, {"verify": True}])
def test_memory_of_another_stream_goes_back_when_the_call_is_done(order, options):
    """The argument's block belongs to the stream that made it, and the result's bytes are those."""
    fast = staticrt.compile(step, donate=("state", "update"), **options)
    current = torch.accelerator.current_stream()
    side = torch.Stream("sim:0")
    for _ in range(4):
        state, update = torch.randn(40, 40), torch.randn(40, 40)
        given = state.to("sim:0"), update.to("sim:0")
        side.wait_stream(current)
        with side:
            result = fast(*given)
            copies = [y * 1 for y in result]
        del result, given
        others = [torch.full((40, 40), 7.0, device="sim:0") for _ in range(3)]  # would get the freed blocks
        for mine, other in zip(copies, step(state, update), strict=True):
            with side:
                torch.testing.assert_close(mine.cpu(), other)
        assert all((x == 7).all().item() for x in others)


@torch.no_grad()
def test_arguments_on_two_devices_keep_to_their_own(order):
    def function(x, y):
        return (x + 1).sum() * 1, torch.exp(y * 2) + 1

    fast = staticrt.compile(function, donate=("x", "y"))
    for device in ("sim:1", "cpu"):
        for _ in range(3):
            x, y = torch.randn(50, 50), torch.randn(50, 50)
            given = x.to("sim:0"), y.to(device) if device != "cpu" else y.clone()
            for mine, other in zip(fast(*given), function(x, y), strict=True):
                torch.testing.assert_close(mine.cpu(), other)


@torch.no_grad()
def test_a_failed_call_takes_the_argument_and_leaves_no_memory(sim):
    fast = staticrt.compile(lambda x, i: torch.tanh(x * 2 + 1).index_select(0, i), donate="x")
    i = torch.tensor([0, 1], device="sim:0")
    for _ in range(3):
        fast(torch.ones(64, 64, device="sim:0"), i)
    for _ in range(2):  # the first one takes the idle arenas of all programs
        held = torch.accelerator.memory_stats(0)["allocated_bytes.all.current"]
        big = torch.ones(1000, 1000, device="sim:0")
        torch.accelerator.empty_cache()
        sim.fail("physical_create", times=50)
        with pytest.raises(torch.OutOfMemoryError):
            fast(big, i)
        sim.clear_faults()
        del big
        torch.accelerator.synchronize(0)
    assert torch.accelerator.memory_stats(0)["allocated_bytes.all.current"] == held
    assert fast(torch.zeros(64, 64, device="sim:0"), i).sum().item() == pytest.approx(2 * 64 * 0.7615942)


@torch.no_grad()
def test_a_call_in_a_capture_cannot_take_arguments():
    fast = staticrt.compile(step, donate="state")
    state, update = torch.ones(8, 8, device="sim:0"), torch.ones(8, 8, device="sim:0")
    fast(state.clone(), update)
    backend = get_backend("sim")
    graph = backend.new_graph(backend.new_pool(0))
    with pytest.raises(InputError, match="the call is captured"), graph.capture(inputs=[state, update]):
        fast(state, update)
    assert state.sum().item() == 64
    staticrt.memory.device("sim:0").clear_reports()


@torch.no_grad()
def test_tensors_that_cannot_be_given_up_are_refused():
    fast = staticrt.compile(step, donate="state")
    state = torch.ones(8, 8, device="sim:0")
    for bad in (state[:4], state.view(64).view(8, 8)):
        with pytest.raises(InputError, match="cannot donate 'state'"):
            fast(bad, torch.ones_like(bad))
    assert state.sum().item() == 64
