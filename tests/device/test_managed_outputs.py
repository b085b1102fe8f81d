"""`manage_outputs=True` with tensors on devices: a buffer on each device, of the stream that runs."""

import pytest
import torch

import staticrt
from staticrt.errors import InputError


def function(x):
    y = torch.tanh(x) * 2
    return y.exp(), y.exp().t(), y + 1


def managed(compiled, result):
    native = compiled._executor.snapshot().traces[0].executable.native
    return [native.is_managed_output(y) for y in result]


def check(result, x):
    for mine, other in zip(result, function(x), strict=True):
        assert mine.device.type == "sim"
        assert mine.stride() == other.stride()
        torch.testing.assert_close(mine.cpu(), other)


@torch.no_grad()
def test_results_lie_in_one_buffer_from_the_second_run_on(order):
    compiled = staticrt.compile(function, manage_outputs=True)
    x = torch.randn(4, 5)
    first = compiled(x.to("sim:0"))
    for rows in (4, 4, 90, 2):
        x2 = torch.randn(rows, 5)
        result = compiled(x2.to("sim:0"))
        assert managed(compiled, result) == [True] * 3
        check(result, x2)
        with pytest.raises(InputError, match="is still held"):
            compiled.deallocate_output_tensors()
        del result
        compiled.deallocate_output_tensors()
    check(first, x)
    steady = torch.randn(3, 5).to("sim:0")
    for _ in range(2):  # the second call of the size prepares it
        compiled(steady)
        compiled.deallocate_output_tensors()
    before = torch.accelerator.memory_stats(0)["allocation.all.allocated"]
    for _ in range(3):
        result = compiled(steady)
        del result
        compiled.deallocate_output_tensors()
    assert torch.accelerator.memory_stats(0)["allocation.all.allocated"] == before  # prepared: no allocation


@torch.no_grad()
def test_runs_on_other_streams_have_buffers_of_their_own(order):
    """Nothing orders the streams: a buffer of another one would be overwritten while it is read."""
    compiled = staticrt.compile(function, manage_outputs=True)
    x = torch.randn(4, 5)
    there = x.to("sim:0")
    compiled(there)
    torch.accelerator.synchronize(0)
    copies = []
    for stream in [torch.Stream("sim:0") for _ in range(3)]:
        with stream:
            result = compiled(there)
            assert managed(compiled, result) == [True] * 3
            copies.append([y.clone() for y in result])
            del result
            compiled.deallocate_output_tensors()
    torch.accelerator.synchronize(0)
    for result in copies:
        check(result, x)


@torch.no_grad()
def test_work_that_is_enqueued_reads_a_result_before_the_next_run_writes_it(order):
    compiled = staticrt.compile(function, manage_outputs=True)
    inputs = [torch.randn(4, 5) for _ in range(4)]
    sums = []
    for x in inputs:
        result = compiled(x.to("sim:0"))
        sums.append(result[2].sum())
        del result
        compiled.deallocate_output_tensors()
    for x, total in zip(inputs, sums, strict=True):
        torch.testing.assert_close(total.cpu(), function(x)[2].sum())


@torch.no_grad()
def test_two_devices():
    compiled = staticrt.compile(lambda x, y: (torch.exp(x), torch.cos(y)), manage_outputs=True)
    x, y = torch.randn(4, 5), torch.randn(3)
    for _ in range(3):
        result = compiled(x.to("sim:0"), y.to("sim:1"))
        assert [t.device.index for t in result] == [0, 1]
        torch.testing.assert_close(result[0].cpu(), x.exp())
        torch.testing.assert_close(result[1].cpu(), y.cos())
        del result
        compiled.deallocate_output_tensors()


@torch.no_grad()
def test_a_failed_allocation_leaves_the_model_usable(sim):
    compiled = staticrt.compile(lambda x: x.exp(), manage_outputs=True)
    x = torch.randn(8, 8)
    compiled(x.to("sim:0"))
    y = torch.randn(3000, 3000).to("sim:0")
    torch.accelerator.empty_cache()
    sim.fail("physical_create", times=50)
    with pytest.raises(torch.OutOfMemoryError):
        compiled(y)
    sim.clear_faults()
    compiled.deallocate_output_tensors()
    for _ in range(2):
        result = compiled(x.to("sim:0"))
        torch.testing.assert_close(result.cpu(), x.exp())
        del result
        compiled.deallocate_output_tensors()
