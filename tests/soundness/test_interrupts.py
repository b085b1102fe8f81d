"""A bounded part of the interrupts; `python -m tests.soundness.interrupt_fuzzer` makes as many as are asked for."""

import gc
import warnings

import pytest
import torch

from staticrt.frontend import budget
from staticrt.frontend.thread_state import ThreadState
from staticrt.frontend.tracing import compiling, patches
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.trace import trace
from staticrt.native import _C
from tests.soundness.interrupt_cases import Body, Writes
from tests.soundness.interrupt_fuzzer import Bytecodes, Interrupt, bytecodes, interrupted, make, run
from tests.support import run_fresh


@pytest.fixture(autouse=True)
def gradients_stay(collects_own_garbage_only):
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
            str(vars(torch._tensor_str.PRINT_OPTS)),
        )

    before, expected = ThreadState(), seen()
    contexts = (
        *(torch.no_grad(), torch.autocast("cpu"), FakeTensorMode()),
        *(compiling.dynamo_compiles(), budget.account(5.0), budget.charged(0.5), patches.lock),
        torch._tensor_str.printoptions(threshold=0),
    )
    for context in contexts:
        context.__enter__()
    assert seen() != expected
    before.restore()
    before.restore()
    assert seen() == expected


def test_where_a_step_over_control_flow_stops_to_watch_the_collector():
    """What the trace's values are taken from may be its own snapshot, which is then asked to restore the model."""
    case, x = make("step", Body, 0)
    for size in (5, 3, 2):  # what is loaded at a first call is loaded here
        case.call(case.compiled, x[:size])
    places = [
        place
        for place, _times in bytecodes("step", Body)[0]
        if place[0].co_filename.endswith("/escapes.py") and place[0].co_name == "close"
    ]
    assert places
    for place in places[::3]:
        case, x = make("step", Body, 7)
        interrupt = Interrupt(KeyboardInterrupt, place, 0)
        assert interrupted(case, x, interrupt) == "", interrupt.where
        assert interrupt.where


def test_a_step_that_cannot_be_undone_keeps_no_other_from_being_undone():
    def broken():
        raise OSError("of the test")

    request = TraceRequest.of(lambda x: x.no_such_name, (torch.ones(2),), {})
    request.snapshot.restore = broken
    before = list(gc.callbacks)
    with pytest.raises(OSError, match="of the test"):
        trace(request)
    assert gc.callbacks == before


# torch's C++ asks its registry in Python before it asks the trace's mode, also where it may not throw.
ASKED_FOR_RULES = """
import sys
import torch
from tests.soundness.interrupt_cases import Plain
from tests.soundness.interrupt_fuzzer import make

def raises(frame, event, argument):
    if frame.f_code.co_name == "find_torch_dispatch_rule" and frame.f_locals["torch_dispatch_class"].__name__ == "Tracer":
        raise KeyboardInterrupt

case, x = make("training", Plain, 0)
sys.settrace(raises)
got = case.call(case.compiled, x)
sys.settrace(None)
print(all(map(torch.allclose, got, case.call(case.eager, x))))
"""


def test_where_autograd_dispatches_no_rule_of_ours_is_looked_up_in_python():
    done = run_fresh(ASKED_FOR_RULES)
    assert done.stdout == "True\n"


# Beneath AOTAutograd the same question goes to torch's own modes, by bytecodes of theirs.
ASKED_FOR_DEVICES = """
import sys
import torch
from tests.soundness.interrupt_cases import Plain
from tests.soundness.interrupt_fuzzer import make

device = torch.ops.prim.device.default
names = ("find_torch_dispatch_rule", "__torch_dispatch__")

def raises(frame, event, argument):
    if frame.f_code.co_name in names and device in frame.f_locals.values():
        raise KeyboardInterrupt

torch._dynamo.config.suppress_errors = False
case, x = make("backend", Plain, 0)
x.requires_grad_()
sys.settrace(raises)
got = case.call(case.compiled, x)["y"]
got.sum().backward()
sys.settrace(None)
print(torch.allclose(got, case.call(case.eager, x)["y"]))
"""


def test_where_autograd_asks_torchs_modes_for_devices():
    done = run_fresh(ASKED_FOR_DEVICES)
    assert done.stdout == "True\n"


BENEATH_AUTOGRAD = """
from tests.soundness.interrupt_cases import Plain
from tests.soundness.interrupt_fuzzer import Interrupt, bytecodes, interrupted, make
from tests.support import fuzz_command

with fuzz_command.quiet():
    found = [(place, times) for place, times in bytecodes("training", Plain)[0] if place[0].co_name == "dispatch_in_python"]
    place, times = min(found, key=lambda each: each[0][1])
    for nth in range(times):
        case, x = make("training", Plain, 0)
        interrupt = Interrupt(KeyboardInterrupt, place, nth)
        assert interrupted(case, x, interrupt) == "", interrupt.where
        assert interrupt.where
print(times, "interrupts")
"""


def test_where_autograd_dispatches_from_code_that_may_not_raise():
    done = run_fresh(BENEATH_AUTOGRAD)
    assert int(done.stdout.split()[0]) > 10
