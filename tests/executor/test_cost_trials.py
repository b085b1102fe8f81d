"""Functions that graph breaks split run so only where that helps."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt import tuning
from staticrt.executor import cost_trials as trials
from staticrt.executor.cost_trials import CostTrials, StepTrials


class Clock:
    """`time` of the module under test: moves when told."""

    def __init__(self):
        self.now = 0

    def perf_counter_ns(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(trials, "time", clock)
    return clock


def ways(tried, clock, leaves, split, eager, calls):
    """How `calls` calls ran, of which split ones take `split` and eager ones `eager` ns."""
    seen = []
    for _ in range(calls):
        way, trial = tried.way(leaves)
        begin = clock.perf_counter_ns()
        clock.now += split if way == "split" else eager
        tried.ran(way, trial, begin, compiled=way == "split")
        seen.append(way)
    return seen


def test_the_faster_way_stays_for_each_signature(clock):
    tried = CostTrials(measured=True)
    small, large = [torch.empty(2)], [torch.empty(2000), 3]
    for _ in range(20):  # taking turns: sizes are measured apart
        ways(tried, clock, small, split=300, eager=20, calls=1)
        ways(tried, clock, large, split=500, eager=900, calls=1)
    assert ways(tried, clock, small, split=300, eager=20, calls=3) == ["eager"] * 3
    assert ways(tried, clock, large, split=500, eager=900, calls=3) == ["split"] * 3


def test_a_little_slower_than_eager_is_too_slow(clock):
    tried = CostTrials(measured=True)
    slower, level = [torch.empty(2)], [torch.empty(3)]
    ways(tried, clock, slower, split=110, eager=100, calls=20)
    ways(tried, clock, level, split=102, eager=100, calls=20)
    assert ways(tried, clock, slower, split=110, eager=100, calls=3) == ["eager"] * 3
    assert ways(tried, clock, level, split=102, eager=100, calls=3) == ["split"] * 3


def test_one_slow_call_decides_nothing(clock):
    tried = CostTrials(measured=True)
    leaves = [torch.empty(2)]
    ways(tried, clock, leaves, split=10**9, eager=100, calls=3)  # compiles
    ways(tried, clock, leaves, split=10**6, eager=100, calls=4)
    ways(tried, clock, leaves, split=90, eager=100, calls=1 + tuning.TRIAL_EAGER_CALLS)
    assert ways(tried, clock, leaves, split=90, eager=100, calls=2) == ["split"] * 2


def test_deterministic_options_measure_nothing(clock):
    tried = CostTrials(measured=False)
    assert ways(tried, clock, [torch.empty(2)], split=300, eager=20, calls=40) == ["split"] * 40


@torch.no_grad()
def test_a_function_of_which_dynamo_compiles_nothing_runs_eagerly():
    layer = nn.LSTM(8, 10, batch_first=True)

    def function(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)

    compiled = staticrt.compile(function, deterministic=True)
    x, lengths = torch.randn(3, 7, 8), torch.tensor([7, 3, 5])
    for _ in range(8):
        torch.testing.assert_close(compiled(x, lengths), function(x, lengths))
    ((_key, state),) = compiled._executor._trace_cache.states.items()
    assert state.trials.way([x])[0] == "eager"
    (call,) = [item for item in compiled.explain().eager if item.what == "call"]
    assert call.calls == 8


@torch.no_grad()
def test_splits_that_take_longer_than_eager_are_left_and_explain_says_so(monkeypatch):
    monkeypatch.setattr(tuning, "TRIAL_MARGIN", 0.0)  # eager is always found faster

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("history", torch.zeros(4, 3))

        def forward(self, x):
            self.history = torch.roll(self.history, 1, 0)
            self.history[0] = x
            return self.history.sum(0) + x

    module, reference = Counting(), Counting()
    compiled = staticrt.compile(module)
    for step in range(20):
        x = torch.randn(3)
        assert torch.equal(compiled(x), reference(x)), step
        assert torch.equal(module.history, reference.history), step
    (call,) = [item for item in compiled.explain().eager if "longer" in item.reason]
    assert call.calls >= 5


def test_what_follows_a_call_with_gradients_belongs_to_it(clock):
    tried = StepTrials(measured=True)
    leaves = [torch.empty(2)]
    for _ in range(20):
        way, trial = tried.way(leaves)
        begin = clock.perf_counter_ns()
        clock.now += 50  # the forward takes as long either way
        tried.ran(way, trial, begin, compiled=way == "split")
        clock.now += 300 if way == "eager" else 200
    assert tried.way(leaves)[0] == "split"


class Noting(nn.Module):
    """Appends to a list in each call, which no trace replays."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        y = self.first(x).tanh()
        self.seen.append(float(y.detach().sum()))
        return self.second(y)


@pytest.mark.parametrize("options", [{}, {"deterministic": True}])
@pytest.mark.parametrize("margin", [0.0, 1e9])
def test_calls_with_gradients_run_the_faster_way(monkeypatch, margin, options):
    monkeypatch.setattr(tuning, "TRIAL_MARGIN", margin)
    module = Noting()
    reference = copy.deepcopy(module)
    compiled = staticrt.compile(module, **options)
    for _ in range(24):
        x = torch.randn(2, 4)
        for run in (compiled, reference):
            run(x).square().sum().backward()
    torch.testing.assert_close(
        [p.grad for p in module.parameters()], [p.grad for p in reference.parameters()]
    )
    assert module.seen == pytest.approx(reference.seen)
    left = [each.calls for each in compiled.explain().eager if "longer" in each.reason]
    assert left == ([8] if margin == 0 and not options else [])


def test_calls_with_gradients_of_which_dynamo_compiles_nothing_run_eagerly(monkeypatch):
    module = Noting()
    compiled = staticrt.compile(module)
    monkeypatch.setattr(compiled._executor._splits, "train", lambda args, kwargs: (module(*args), False))
    for _ in range(12):
        compiled(torch.randn(2, 4)).sum().backward()
    reasons = [(each.reason, each.calls) for each in compiled.explain().eager if each.what == "call"]
    assert (
        "the call needs gradients, and Dynamo found nothing to compile",
        tuning.TRIAL_IDLE_CALLS,
    ) in reasons
