"""These tests run in processes of their own: devices must be enabled before a process' first backward.

`make test` runs them after all others (`pytest tests/device`).
"""

import pytest
import torch

import staticrt

staticrt.memory.simulated.enable(devices=2)


@pytest.fixture(autouse=True)
def nothing_is_reported():
    """Each test begins with idle devices, and ends without a race, a broken invariant or an error nobody saw."""
    staticrt.memory.simulated.order("needed")
    for index in range(2):
        staticrt.memory.simulated.clear_waits(index)
    yield
    for index in range(2):
        torch.accelerator.synchronize(index)
        staticrt.memory.device(f"sim:{index}").check()


@pytest.fixture
def sim():
    return staticrt.memory.device("sim:0")


@pytest.fixture(params=["needed", "others_first", "random"])
def order(request):
    """Each test that takes it runs under every order of streams."""
    staticrt.memory.simulated.order(request.param, seed=7)
    return request.param
