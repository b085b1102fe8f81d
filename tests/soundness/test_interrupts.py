"""A bounded part of the interrupts; `python -m tests.soundness.interrupt_fuzzer` makes as many as are asked for."""

import warnings

import pytest
import torch

from staticrt.frontend import budget
from staticrt.frontend.thread_state import ThreadState
from staticrt.frontend.tracing import compiling, patches
from staticrt.native import _C
from tests.soundness.interrupt_fuzzer import (
    Bytecodes,
    Interrupt,
    Writes,
    bytecodes,
    interrupted,
    make,
    run,
)


@pytest.fixture(autouse=True)
def gradients_stay():
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("way", ["first", "second"])
def test_random_interrupts_leave_nothing_behind(way):
    assert run(10, seed=7, ways=(way,)) == []


@pytest.mark.parametrize(
    "names",
    [
        ("tracer.py", "__enter__"),
        ("fake_mode.py", "__enter__"),
        ("escapes.py", "open"),
        ("impure_calls.py", "start"),
        ("impure_calls.py", "stop"),
        ("patches.py", "tracing"),
    ],
    ids="-".join,
)
def test_where_a_context_has_begun_and_nobody_ends_it_yet(names):
    make_once("first")
    file, name = names
    places = [
        place
        for place, _times in bytecodes("first", Writes)[0]
        if place[0].co_filename.endswith(f"/{file}") and place[0].co_name == name
    ]
    assert places
    for place in places[-12:]:
        case, x = make("first", Writes, 0)
        interrupt = Interrupt(KeyboardInterrupt, place, 0)
        assert interrupted(case, x, interrupt) == "", interrupt.where
        assert interrupt.where


def make_once(way):
    case, x = make(way, Writes, 0)
    assert interrupted(case, x, Bytecodes()) == ""


def test_a_thread_gets_its_state_back():
    """Whatever was begun and not ended."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def seen():
        return (
            torch._C._len_torch_dispatch_stack(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_cache_enabled(),
            _C.autocast_nesting(),
            compiling.depth(),
            budget.state(),
            patches.lock._is_owned(),
        )

    before, expected = ThreadState(), seen()
    contexts = (
        *(torch.no_grad(), torch.autocast("cpu"), FakeTensorMode()),
        *(compiling.dynamo_compiles(), budget.account(5.0), budget.charged(0.5), patches.lock),
    )
    for context in contexts:
        context.__enter__()
    assert seen() != expected
    before.restore()
    before.restore()
    assert seen() == expected
