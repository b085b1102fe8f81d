"""What Python runs between two steps of a model is not the model's: callbacks of the collector, finalizers, signal handlers."""

import contextlib
import enum
import functools
import gc
import itertools
import logging
import signal
import sys
import time
import types

import pytest
import torch

import staticrt
from staticrt.frontend.reasons import is_interrupt
from tests.soundness.interrupt_cases import Plain
from tests.soundness.interrupt_fuzzer import Bytecodes, Interrupt, bytecodes, interrupted, make


def allocates(x):
    """Enough objects for some collections."""
    kept = []
    for step in range(20):
        kept.append([[step] for _ in range(200)])
        x = x + len(kept)
    return x


def check_traced(model):
    compiled = staticrt.compile(model)
    x = torch.ones(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
    report = compiled.explain()
    assert [trace.route for trace in report.traces] == ["whole"], report
    assert not report.eager, report
    assert not report.notes, report


@pytest.fixture
def unraisable(monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    return seen


def test_callbacks_of_the_collector(unraisable):
    times = []

    def note(_phase, _info):
        times.append(time.perf_counter())
        logging.getLogger(__name__).debug("collected")

    before = list(gc.callbacks)
    gc.callbacks.append(note)
    try:
        check_traced(allocates)
    finally:
        gc.callbacks.remove(note)
    assert gc.callbacks == before
    assert len(times) > 10
    assert not unraisable


def test_finalizers_that_a_collection_runs(unraisable):
    ended = []

    class Connection:
        def __init__(self):
            self.owner = self  # a cycle

        def __del__(self):
            ended.append(time.time())

    def model(x):
        for _ in range(3):
            x = allocates(x)
        return x

    for _ in range(50):
        Connection()
    gc.disable()
    try:
        for _ in range(50):
            Connection()
    finally:
        gc.enable()
    check_traced(model)
    gc.collect()
    assert len(ended) == 100
    assert not unraisable


def test_an_error_of_code_without_a_hash_is_no_interrupt():
    """Dynamo makes such code: a dict is among its constants."""

    def model():
        raise ValueError("of the model")

    made = model.__code__.replace(co_consts=(*model.__code__.co_consts, {}))
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
    with pytest.raises(ValueError, match="of the model") as raised:
        types.FunctionType(made, globals())()
    assert not is_interrupt(raised.value)


@pytest.mark.parametrize("kind", ["function", "method"])
def test_signal_handlers(kind):
    class Handler:
        calls = 0

        def run(self, _number, _frame):
            self.calls += 1
            self.at = time.time()
            self.text = f"{signal.getitimer(signal.ITIMER_REAL)}"
            logging.getLogger(__name__).debug("signal")
            self.ended = self.calls

    handler = Handler()
    function = handler.run if kind == "method" else lambda number, frame: handler.run(number, frame)

    def model(x):
        for step in range(3000):
            x = x + step
        return x

    before = signal.signal(signal.SIGALRM, function)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        check_traced(model)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handler.calls > 10
    assert handler.ended == handler.calls


def test_what_the_model_does_itself_is_still_seen():
    def model(x):
        time.time()
        return allocates(x)

    compiled = staticrt.compile(model)
    for _ in range(3):
        compiled(torch.ones(3))
    assert any(
        "time.time" in note for note in (*compiled.explain().notes, *map(str, compiled.explain().eager))
    )


class SignalAt(Interrupt):
    """Raises by the handler of a signal."""

    def _on_bytecode(self, frame, event, _argument):
        if event == "opcode" and frame.f_lasti == self.offset and not self.where:
            self.where = frame.f_code.co_name
            signal.raise_signal(signal.SIGUSR1)
        return self._on_bytecode


@pytest.mark.parametrize(
    ("way", "file", "name"),
    [
        ("first", "tracer.py", "_dispatch"),
        ("first", "fake_rules.py", "fake_by_rule"),
        ("first", "cse.py", "run"),
        ("first", "lower.py", "_operator"),
        ("second", "cached_trace.py", "takes"),
        ("training", "joint_trace.py", "__call__"),
        ("training", "plans.py", "_plan"),
        ("step", "tracer.py", "_dispatch"),
    ],
)
def test_what_a_handler_raises_reaches_the_caller_from_anywhere(way, file, name):
    class Late(Exception):
        pass

    def late(_number, _frame):
        raise Late

    before, gradients = signal.signal(signal.SIGUSR1, late), torch.is_grad_enabled()
    try:
        places = [
            place
            for place, _times in itertools.chain(*bytecodes(way, Plain))
            if place[0].co_filename.endswith(f"/{file}") and place[0].co_name == name
        ]
        assert places
        for place in places[:: max(len(places) // 5, 1)]:
            case, x = make(way, Plain, 0)
            interrupt = SignalAt(Late, place, 0)
            torch.set_grad_enabled(way not in ("first", "second"))
            with pytest.raises(Late), interrupt:
                case.call(case.compiled, x)
            assert interrupt.where
            assert interrupted(case, x, Bytecodes()) == ""  # it answers now, and leaves nothing behind
    finally:
        signal.signal(signal.SIGUSR1, before)
        torch.set_grad_enabled(gradients)


# Dynamo goes on without compiled code where an error comes in its own, and wraps those of backends.
class Clocked(Plain):
    """Dynamo splits it."""

    def forward(self, x):
        y = self.layers(x).relu()
        return {"y": y, "seconds": int(time.time() > 0)}


@pytest.mark.parametrize(
    ("way", "model", "file", "name"),
    [
        ("training", Clocked, "_dynamo/variables/tensor.py", "call_method"),
        ("training", Clocked, "fx/_symbolic_trace.py", "patch"),
        ("training", Clocked, "training/aot_region.py", "__init__"),
        ("backend", Plain, "executor/partial_graph.py", "__init__"),
    ],
)
def test_what_a_handler_raises_reaches_the_caller_through_dynamo(way, model, file, name):
    came = []

    def on_call(frame, _event, _argument):
        code = frame.f_code
        if not came and code.co_name == name and code.co_filename.endswith(f"/{file}"):
            came.append(code)
            signal.raise_signal(signal.SIGUSR1)

    before, gradients = signal.signal(signal.SIGUSR1, _raises), torch.is_grad_enabled()
    torch.set_grad_enabled(way == "training")
    case, x = make(way, model, 0)
    case.call(case.compiled, x)  # what is loaded at a first call is loaded here
    case, x = make(way, model, 0)
    sys.settrace(on_call)
    try:
        with pytest.raises(TimeoutOfCall):
            case.call(case.compiled, x)
        assert came
        assert interrupted(case, x, contextlib.nullcontext()) == ""
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGUSR1, before)
        torch.set_grad_enabled(gradients)


class TimeoutOfCall(Exception):
    pass


def _raises(_number, _frame):
    raise TimeoutOfCall


def _once(_number, _frame):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise TimeoutOfCall


class _Handler:
    def __call__(self, _number, _frame):
        raise TimeoutOfCall


@pytest.mark.parametrize(
    "handler",
    [_raises, _once, _Handler(), functools.partial(_Handler.__call__, None)],
    ids=["function", "once", "object", "partial"],
)
def test_what_a_handler_raises_stops_the_call(handler):
    """A signal that comes while an operator is recorded; Python ignores what is raised in callbacks of its collector."""
    sent = []

    def on_call(frame, _event, _argument):
        code = frame.f_code
        if not sent and code.co_name == "record" and code.co_filename.endswith("/tracing/tracer.py"):
            sent.append(code)
            signal.raise_signal(signal.SIGALRM)

    def model(x):
        for step in range(20):
            x = x + step
        return x

    compiled = staticrt.compile(model)
    before = signal.signal(signal.SIGALRM, handler)
    sys.settrace(on_call)
    try:
        with pytest.raises(TimeoutOfCall):
            compiled(torch.ones(3))
        assert sent
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGALRM, before)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 191.0))


def test_errors_of_enums_are_the_models():
    class Mode(enum.Enum):
        FIRST = 1

    with pytest.raises(ValueError, match="is not a valid") as caught:
        Mode(7)
    assert not is_interrupt(caught.value)


def test_an_error_that_is_its_own_cause():
    def model(x):
        error = ValueError("mine")
        raise error from error if x.shape[0] > 1 else None

    with pytest.raises(ValueError, match="mine"):
        staticrt.compile(model)(torch.ones(3))


def test_what_gets_its_callers_frame_is_not_a_handler(capsys):
    def show(_frame, x):
        print("shown")
        return x * 2

    def model(x):
        try:
            raise KeyError
        except KeyError as error:
            frame = error.__traceback__.tb_frame
        result = show(frame, x)
        del frame
        return result

    compiled = staticrt.compile(model)
    for _ in range(3):
        compiled(torch.ones(3))
    assert capsys.readouterr().out == "shown\n" * 3
