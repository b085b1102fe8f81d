"""Models for which each call would make a trace: the number of traces is bounded, and `explain()` says why."""

import weakref

import pytest
import torch
from torch import nn

import staticrt
from staticrt.frontend.graph import Guard, GuardSet
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.frontend.tracing import trace
from staticrt.runtime.executable import StaticExecutable

CALLS = 50
REFUSES = "a guard refuses the call that it was made for"


def runner(mode, model):
    """A compiled callable, its `explain`, and how a test calls it."""
    if mode == "step":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        @staticrt.compile_step
        def step(*args):
            optimizer.zero_grad()
            loss = model(*args).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        return step.explain, step
    compiled = staticrt.compile(model)
    if mode == "training":
        return compiled.explain, lambda *args: compiled(*args).square().sum().backward()
    return compiled.explain, torch.no_grad()(compiled)


@pytest.fixture
def traces(monkeypatch):
    """A list that gets an entry for each trace."""
    made = []
    record = trace._record
    monkeypatch.setattr(trace, "_record", lambda *args: made.append(args) or record(*args))
    return made


@pytest.fixture(params=["inference", "training", "step"])
def mode(request):
    return request.param


def reasons(explain):
    return {item.reason: item.calls for item in explain().eager}


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_a_trace_whose_state_guard_refuses_its_own_call_is_not_made_again(mode, traces, monkeypatch):
    monkeypatch.setattr(StateGuard, "holds", lambda self: False)
    monkeypatch.setattr(StateGuard, "native", lambda self: None)
    explain, call = runner(mode, nn.Linear(4, 4))
    for _ in range(CALLS):
        call(torch.ones(2, 4))
    assert len(traces) == 1
    (reason,) = reasons(explain)
    assert reason.startswith(REFUSES)
    assert reasons(explain)[reason] == CALLS


class Refusing(GuardSet):
    """Guards with one more, which no call satisfies."""

    def __init__(self, guards):
        impossible = Guard(f"{guards.symbols[0].name} < 0", "model.py:7")
        super().__init__(guards.symbols, [*guards.guards, impossible])


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_a_trace_whose_size_guard_refuses_its_own_call_is_not_made_again(mode, traces, monkeypatch):
    guards_of = trace.guards_of
    monkeypatch.setattr(trace, "guards_of", lambda *args: Refusing(guards_of(*args)))
    explain, call = runner(mode, nn.Linear(4, 4))
    for number in range(CALLS):
        call(torch.ones(2 + number, 4))
    assert len(traces) <= 2  # the second has constant sizes
    (item,) = explain().eager
    assert item.reason.startswith(REFUSES)
    assert item.reason.endswith(" < 0")
    assert (item.where, item.calls) == ("model.py:7", CALLS)


def test_sizes_become_constants_where_a_symbolic_guard_refuses_its_own_call(traces, monkeypatch):
    guards_of = trace.guards_of
    monkeypatch.setattr(
        trace,
        "guards_of",
        lambda *args: guards_of(*args) if len(traces) > 1 else Refusing(guards_of(*args)),
    )
    explain, call = runner("inference", nn.Linear(4, 4))
    for _ in range(CALLS):
        call(torch.ones(2, 4))
    assert len(traces) == 2
    assert not explain().eager
    assert any("shape[0] == 2" in guard for guard in explain().traces[0].guards)


class Scaled(nn.Module):
    """Reads Python state that callers change before each call."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 0

    def forward(self, x):
        scale = self.scale() if isinstance(self.scale, weakref.ref) else self.scale
        return self.linear(x) * getattr(scale, "number", scale)


class Number:
    def __init__(self, number):
        self.number = number


@pytest.mark.parametrize("kind", ["counter", "object", "weak reference"])
def test_state_that_differs_in_every_call_makes_a_bounded_number_of_traces(kind, mode, traces):
    model = Scaled()
    explain, call = runner(mode, model)
    held = None
    for number in range(CALLS):
        held = Number(number)
        model.scale = {"counter": number, "object": held, "weak reference": weakref.ref(held)}[kind]
        call(torch.ones(2, 4))
    assert len(traces) <= 16
    explanation = str(explain())
    assert "more than max_traces=16 traces" in explanation


@pytest.mark.filterwarnings("ignore:.*max_traces")
def test_a_key_that_makes_a_trace_in_every_call_leaves_others_their_places(mode, traces):
    model = Scaled()
    _explain, call = runner(mode, model)
    vector, matrix, cube = torch.ones(4), torch.ones(2, 4), torch.ones(1, 2, 4)
    for number in range(CALLS):
        model.scale = number
        call(vector)
    assert len(traces) == 16
    for number in range(CALLS):
        model.scale = number + CALLS
        call(matrix)
    assert len(traces) == 24  # 8 of 16 places for each
    call(cube)
    assert len(traces) == 25


def test_the_warning_about_the_limit_names_the_line_of_the_caller():
    compiled = torch.no_grad()(staticrt.compile(lambda x: x * 2, max_traces=1))
    compiled(torch.ones(3))
    with pytest.warns(UserWarning, match="max_traces=1") as caught:
        compiled(torch.ones(3, 3))
    assert [warning.filename for warning in caught] == [__file__]


def test_a_step_whose_optimiser_has_other_parameters_in_every_call_is_recorded_a_bounded_number_of_times(
    traces,
):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parameters = list(model.parameters())

    @staticrt.compile_step
    def step(x):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    for number in range(CALLS):
        optimizer.param_groups[0]["params"] = parameters[: 1 + number % 2]
        step(torch.ones(2, 4))
    assert len(traces) == 16
    assert reasons(step.explain) == {"more than max_traces=16 traces": CALLS - 16}


def test_a_trace_whose_first_run_raises_where_eager_does_not_is_made_three_times(traces, monkeypatch):
    def broken(self, flat):
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(StaticExecutable, "run", broken)
    explain, call = runner("inference", nn.Linear(4, 4))
    for _ in range(CALLS):
        call(torch.ones(2, 4))
    assert len(traces) == 3
    assert reasons(explain) == {"its first run raised RuntimeError: a kernel failed": CALLS}
