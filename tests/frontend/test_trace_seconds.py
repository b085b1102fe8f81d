"""Tracing stops in bounded time: what is not traced by then runs eagerly, and `explain()` says so.

The clock is the test's own: it moves by a second whenever it is read.
"""

import random

import pytest
import torch
from torch import nn

import staticrt
from staticrt.frontend import budget
from staticrt.frontend.tracing.shape_env import DecidingShapeEnv


class Clock:
    def __init__(self):
        self.now = 0.0

    def thread_time(self):
        self.now += 1
        return self.now

    monotonic = thread_time


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    return clock


class Child(nn.Module):
    def forward(self, x):
        return (x * 2).relu()


class Long(nn.Module):
    """Many operators in one function, then a child."""

    def __init__(self, cut):
        super().__init__()
        self.cut = cut
        self.child = Child()

    def forward(self, x):
        if self.cut:
            random.random()  # no graph replays it
        for i in range(1000):
            x = x * 0.5 + i
        return self.child(x)


def out_of_time(compiled):
    explanation = compiled.explain()
    found = [item.where for item in explanation.eager if "longer than trace_seconds" in item.reason]
    return found, [note for note in explanation.notes if "longer than trace_seconds" in note]


@torch.no_grad()
def test_a_trace_out_of_time_is_left_and_never_tried_again(clock):
    model = Long(cut=False).eval()
    compiled = staticrt.compile(model, trace_seconds=10)
    for n in (2, 2, 2, 5):
        x = torch.randn(n, 3)
        assert torch.equal(compiled(x), model(x))
        assert clock.now <= 60
    parts, notes = out_of_time(compiled)
    assert parts
    assert notes
    spent = clock.now
    compiled(torch.randn(2, 3))
    assert clock.now == spent


@torch.no_grad()
@pytest.mark.parametrize("option", ["trace_seconds", "deterministic", "fullgraph"])
def test_without_a_bound_the_clock_is_not_read(clock, option):
    model = Long(cut=False).eval()
    compiled = staticrt.compile(
        model, **({"trace_seconds": None} | {option: option != "trace_seconds" or None})
    )
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), model(x))
    assert len(compiled.explain().traces) == 1
    assert not any(out_of_time(compiled))
    assert clock.now == 0


@torch.no_grad()
def test_a_function_that_takes_too_long_leaves_time_for_those_it_calls(clock):
    model = Long(cut=True).eval()
    compiled = staticrt.compile(model, trace_seconds=8000)
    for n in (2, 2, 4):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), model(x))
    parts, notes = out_of_time(compiled)
    assert len(parts) == 1  # what is left of forward() after the cut
    assert parts[0].startswith("test_trace_seconds.py:")
    assert not notes  # the whole model was given up for another reason
    assert len(compiled.explain().traces) >= 1  # the child


@torch.no_grad()
def test_an_exception_of_the_model_keeps_no_time(clock):
    def fails(x):
        raise ValueError("no")

    compiled = staticrt.compile(fails, trace_seconds=100)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            compiled(torch.ones(2))
    assert budget._local.left is None
    assert budget._local.deadline == float("inf")


@torch.no_grad()
def test_sizes_that_torchs_symbols_make_too_slow_are_constants(monkeypatch):
    """Each size has a trace of its own then, and symbols are tried once."""
    attempts = []

    def slow(env, *args, **kwargs):
        attempts.append(env)
        raise budget.OutOfTime

    def model(x):
        y = torch.logcumsumexp(x, 1)  # for which our sizes have no rule
        return y * 2 if x.shape[0] > 2 else y * 3

    monkeypatch.setattr(DecidingShapeEnv, "_evaluate_expr", slow)
    compiled = staticrt.compile(model)
    for rows in (2, 2, 3, 4, 3):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), model(x))
    explanation = compiled.explain()
    assert len(explanation.traces) == 3
    assert not explanation.eager
    assert len({id(env) for env in attempts}) == 1
