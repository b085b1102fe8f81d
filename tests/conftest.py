"""What holds for every test.

It draws the same random numbers in every run, whatever ran before: a failure repeats by the test's name alone. The
variable STATICRT_TEST_SEED gives all tests other numbers.

It leaves the process as it found it: what stays behind fails another test, in some orders of tests only.
"""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Iterator

import numpy
import pytest
import torch

from staticrt.native import _C
from staticrt.torch_private import other_settings

SEED = int(os.environ.get("STATICRT_TEST_SEED", "0"))


def seed_from(name: str) -> None:
    seed = zlib.crc32(f"{SEED} {name}".encode())
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def pytest_configure() -> None:
    seed_from("parameters of tests")
    # As torch.export does when it first traces: "default" becomes the precision that it stands for.
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed_from(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Iterator[None]:
    """A fixture that several tests share draws numbers of its own, whichever test asks first."""
    if fixturedef.scope == "function":
        return (yield)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    seed_from(f"{fixturedef.baseid} {fixturedef.argname} {request.param_index}")
    try:
        return (yield)
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])


def state() -> dict[str, object]:
    flags = _C.process_state()
    names = [name for name, _of_thread in _C.process_flags()]
    return {
        **{name: flags[2 * i : 2 * i + 2] for i, name in enumerate(names)},
        **other_settings(),
        "autocast blocks": _C.autocast_nesting(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "Module.__call__": torch.nn.Module.__call__,
    }


@pytest.fixture(scope="module")
def collects_own_garbage_only() -> Iterator[None]:
    """For modules that call the garbage collector often: it does not visit each object of torch, sympy and the like.

    Not for what looks for references: `gc.get_referrers` skips those objects too.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo knows no code of other tests: its recompile limits count per code object."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def num_threads_stays() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def state_of_the_process_stays() -> Iterator[None]:
    before = state()
    yield
    after = state()
    assert [name for name in after if after[name] != before.get(name, after[name])] == []
