"""Async calls: run_async, fork, wait."""

import asyncio
import threading
import time

import pytest
import torch

import staticrt
from staticrt.errors import OptionError


@pytest.fixture(autouse=True)
def two_threads():
    staticrt.set_num_async_threads(2)


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()


def test_many_calls_at_once_equal_eager(model):
    fast = staticrt.compile(model)
    inputs = [torch.randn(1 + i % 7, 16) for i in range(200)]
    with torch.no_grad():
        futures = [fast.run_async(x) for x in inputs]
        for x, future in zip(inputs, futures, strict=True):
            torch.testing.assert_close(staticrt.wait(future), model(x))


@pytest.mark.parametrize(("width", "depth"), [(10, 2), (3, 5)])
def test_nested_forks_do_not_wait_for_each_other(width, depth):
    def count(level: int) -> int:
        if level == 0:
            return 1
        futures = [staticrt.fork(count, level - 1) for _ in range(width)]
        return sum(staticrt.wait(future) for future in futures)

    assert staticrt.wait(staticrt.fork(count, depth)) == width**depth


def test_errors_reach_who_waits(model):
    fast = staticrt.compile(model)
    with torch.no_grad():
        fast(torch.randn(2, 16))
        bad = fast.run_async(torch.randn(2, 17))
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            bad.result()
        assert isinstance(bad.exception(), RuntimeError)
        x = torch.randn(2, 16)
        torch.testing.assert_close(fast.run_async(x).result(), model(x))


def test_the_callers_modes_hold():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not staticrt.fork(lambda: (x * 2).requires_grad).result()
    assert staticrt.fork(lambda: (x * 2).requires_grad).result()
    with torch.inference_mode():
        assert staticrt.fork(lambda: (x * 2).is_inference()).result()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w = torch.randn(4, 4)
        assert staticrt.fork(lambda: (w @ w).dtype).result() is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_a_queued_call_can_be_cancelled_and_a_running_one_times_out():
    gate = threading.Event()
    running = [staticrt.fork(gate.wait) for _ in range(2)]
    deadline = time.monotonic() + 20
    while not all(future.running() for future in running) and time.monotonic() < deadline:
        time.sleep(0.01)
    queued = staticrt.fork(lambda: 1)
    assert queued.cancel()
    with pytest.raises(TimeoutError):
        running[0].result(timeout=0.05)
    gate.set()
    assert all(future.result() for future in running)


def test_awaitable():
    async def main():
        return await asyncio.gather(
            *(asyncio.wrap_future(staticrt.fork(lambda i=i: i * i)) for i in range(20))
        )

    assert asyncio.run(main()) == [i * i for i in range(20)]


def test_wrong_thread_count():
    for bad in (0, -1, 1.5, True):
        with pytest.raises(OptionError):
            staticrt.set_num_async_threads(bad)
