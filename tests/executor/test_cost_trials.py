"""Functions that graph breaks split run so only where that helps."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt import tuning
from staticrt.executor import cost_trials as trials
from staticrt.executor.cost_trials import CostTrials


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
