"""Timing in blocks: the numbers of known work, and which of them is quoted."""

import gc
import time

import pytest

from staticrt.models.bench import timing
from staticrt.models.bench.timing import Block, Round, block_timer, calls_per_block, compare, hot_call


def block(call_us, *, preemptions=0, cpu_us=None):
    cpu_us = call_us if cpu_us is None else cpu_us
    return Block(calls=10, wall_ns=call_us * 10_000, cpu_ns=cpu_us * 10_000, preemptions=preemptions)


def test_a_block_makes_exactly_the_calls_asked_for_with_the_collector_off():
    seen = []
    measure = block_timer(lambda a, b: seen.append((a, b, gc.isenabled())), (1, 2))
    measured = measure(7)
    assert seen == [(1, 2, False)] * 7
    assert gc.isenabled()
    assert measured.calls == 7
    assert measured.wall_ns > 0


def test_sleep_takes_wall_time_but_no_cpu_time():
    measured = block_timer(time.sleep, (0.01,))(3)
    assert measured.call_ns >= 10e6
    assert measured.call_cpu_ns < 5e6


def test_blocks_are_filled_to_the_length_asked_for():
    assert calls_per_block(block_timer(time.sleep, (0.002,)), 0.02) in range(5, 11)
    assert calls_per_block(block_timer(time.sleep, (0.02,)), 0.001) == 1


def test_hot_call_of_a_fixed_sleep():
    timed = hot_call(time.sleep, (0.003,), seconds=0.05, block_seconds=0.006)
    assert 3e6 <= timed.best_ns < 30e6
    assert timed.blocks >= 2


def test_interleaving_alternates_and_begins_with_each_in_turn():
    order = []

    def recorder(name):
        def measure(calls):
            order.append(name)
            return Block(calls, 10_000_000, 1, 0)

        return measure

    rounds = timing.interleave(recorder("a"), recorder("b"), seconds=0.0, block_seconds=0.001, min_rounds=4)
    assert len(rounds) == 4
    assert "".join(order[2:]) == "abbaabba", "the first two calls fit the blocks"


def test_a_rest_and_an_untimed_block_precede_each_block(monkeypatch):
    order = []
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: order.append(seconds))

    def recorder(name):
        def measure(calls):
            order.append((name, calls))
            return Block(calls, calls * 1_000_000, 1, 0)

        return measure

    rounds = timing.interleave(
        recorder("a"), recorder("b"), seconds=0.0, block_seconds=0.004, min_rounds=2, rest_seconds=0.05
    )
    pair = {name: [0.05, (name, 4), (name, 4)] for name in "ab"}
    first = order.index(0.05)
    assert order[first : first + 12] == pair["a"] + pair["b"] + pair["b"] + pair["a"]
    assert [r.candidate.calls for r in rounds] == [4, 4], "the untimed block is not part of a round"


def test_rounds_without_preemption_are_quoted_first():
    rounds = [Round(block(20), block(10))] * 3 + [Round(block(20), block(80, preemptions=1))] * 4
    summary = compare(rounds, threads=1)
    assert (summary.speedup, summary.basis) == (2.0, "clean")
    assert summary.wall_speedup == 0.25
    assert (summary.rounds, summary.clean_rounds) == (7, 3)
    assert (summary.baseline_ns, summary.candidate_ns) == (20_000, 10_000)


def test_a_few_lucky_rounds_among_many_are_no_sample():
    lucky = [Round(block(20), block(10))] * 3
    preempted = [Round(block(40, cpu_us=20), block(90, cpu_us=20, preemptions=1))] * 30
    summary = compare(lucky + preempted, threads=1)
    assert (summary.speedup, summary.basis, summary.clean_speedup) == (1.0, "cpu", None)
    assert summary.candidate_ns == 20_000


def test_cpu_time_is_no_measure_with_more_threads():
    rounds = [Round(block(20, cpu_us=20), block(10, cpu_us=40, preemptions=2))] * 5
    summary = compare(rounds, threads=2)
    assert (summary.speedup, summary.basis) == (2.0, "wall")


def test_spread_is_the_interquartile_range_over_the_median():
    ratios = [1, 2, 3, 4, 5, 6, 7]
    rounds = [Round(block(10 * ratio), block(10)) for ratio in ratios]
    assert compare(rounds, threads=1).spread == pytest.approx((6 - 2) / 4)
