"""`run_async` and `fork` with tensors on the simulated accelerator: work goes to the caller's device and streams."""

import copy

import pytest
import torch
from torch import nn

import staticrt

SIM = torch.device("sim:0")


@pytest.fixture
def models():
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
    return copy.deepcopy(model).to(SIM), model


def here():
    index = torch.accelerator.current_device_index()
    return index, [torch.accelerator.current_stream(each) for each in range(2)]


def test_work_has_the_callers_device_and_streams():
    streams = [torch.Stream("sim:0"), torch.Stream("sim:1")]
    outside = here()
    with streams[1], streams[0]:
        assert staticrt.fork(here).result() == (0, streams)
    with streams[1]:
        future = staticrt.fork(lambda: (here(), torch.ones(2, device="sim").device))
        assert future.result() == ((1, [outside[1][0], streams[1]]), torch.device("sim:1"))
    assert staticrt.fork(here).result() == outside == here()


def test_calls_follow_what_the_caller_enqueued(models, order):
    """Inputs are made on the caller's stream, and results are used there: another stream would be a race."""
    on_sim, model = models
    compiled = staticrt.compile(on_sim)
    torch.accelerator.synchronize()
    results = []
    with torch.no_grad():
        for number in range(8):
            with torch.Stream("sim:0"):
                x = torch.randn(1 + number % 3, 16)
                future = compiled.run_async(x.to(SIM) * 2)
                results.append((future.result() + 1, x))
        torch.accelerator.synchronize()
        for result, x in results:
            torch.testing.assert_close(result.cpu(), model(x * 2) + 1)


def test_a_future_is_done_before_the_device_is(models, sim):
    on_sim, model = models
    compiled = staticrt.compile(on_sim)
    x = torch.randn(3, 16)
    with torch.no_grad(), torch.Stream("sim:0") as stream:
        inputs = x.to(SIM)
        for _ in range(3):
            compiled(inputs)
        stream.synchronize()
        staticrt.memory.simulated.clear_waits(0)
        future = compiled.run_async(inputs)
        assert future.exception() is None
        assert not stream.query()
        assert staticrt.memory.simulated.waits(0) == {}
        torch.testing.assert_close(future.result().cpu(), model(x))


def test_errors_of_the_device_reach_who_waits(models):
    on_sim, _model = models
    compiled = staticrt.compile(on_sim)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            compiled.run_async(torch.ones(2, 17, device=SIM)).result()
        assert compiled.run_async(torch.ones(2, 16, device=SIM)).result().shape == (2, 4)


@pytest.mark.skipif(
    not hasattr(torch.Stream, "is_capturing"),
    reason="torch cannot say whether other streams than CUDA's capture",
)
def test_an_error_of_work_before_a_trace_reaches_the_caller():
    """Making a trace waits for the device, too: the error is not one of the trace's."""

    def function(x):
        return x + torch.ones(4, device=SIM).cumsum(0)

    compiled = staticrt.compile(function)
    x = torch.arange(12.0).view(3, 4).to(SIM)
    with torch.no_grad():
        x[1:] = x[:-1]  # enqueued; raises when it runs
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            compiled(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x).cpu(), function(x.cpu().to(SIM)).cpu())
    assert "runs eagerly" not in str(compiled.explain())
