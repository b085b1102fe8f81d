"""These tests run in processes of their own: devices must be enabled before a process' first backward.

`make test` runs them after all others (`pytest tests/device`), under three orders of streams where order matters. `make
seeds` (`pytest tests/device --seeds 20`) runs each under 20 random orders besides, but for modules that say ORDERS_OF_THEIR_OWN.
"""

import pytest
import torch

import staticrt

staticrt.memory.simulated.enable(devices=2)
ORDERS = ["needed", "others_first", "random"]


def pytest_addoption(parser):
    parser.addoption("--seeds", type=int, default=0, help="random orders of streams, for each test")


def pytest_generate_tests(metafunc):
    """`order` tests run under each worst case and each seed, all others under the first worst case and each seed."""
    if getattr(metafunc.module, "ORDERS_OF_THEIR_OWN", False):
        return
    seeds = [f"random-{seed}" for seed in range(metafunc.config.getoption("--seeds"))]
    if "order" in metafunc.fixturenames:
        metafunc.parametrize("order", ORDERS + seeds, indirect=True)
    elif seeds:
        metafunc.parametrize("first_order", ["needed", *seeds], indirect=True)


def set_order(name):
    kind, _, seed = name.partition("-")
    staticrt.memory.simulated.order(kind, int(seed or 7))


@pytest.fixture(autouse=True)
def first_order(request):
    """The order that a test begins with."""
    set_order(getattr(request, "param", "needed"))


@pytest.fixture(autouse=True)
def nothing_is_reported(first_order):
    """Each test begins with idle devices, and ends without a race, a broken invariant or an error nobody saw."""
    for index in range(2):
        staticrt.memory.simulated.clear_waits(index)
        device = staticrt.memory.device(f"sim:{index}")
        device.clear_faults()
        device.clear_reports()
    yield
    for index in range(2):
        torch.accelerator.synchronize(index)
        staticrt.memory.device(f"sim:{index}").check()


@pytest.fixture
def sim():
    return staticrt.memory.device("sim:0")


@pytest.fixture
def order(request):
    """Each test that takes it runs under every order of streams."""
    set_order(request.param)
    return request.param
