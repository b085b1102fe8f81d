"""Timing of a hot call from Python: batches under `timeit`, alternating rounds, and their spread.

One call may take less than the clock's own cost and the machine may be shared. So calls are timed in
blocks of equal length with the garbage collector off; two callables are compared by blocks that follow
each other, whose ratio the machine's state hardly changes; and a block during which the scheduler took
the CPU away is marked, so that a "clean" median can leave it out.
"""

from __future__ import annotations

import resource
import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MAX_ROUNDS = 400
REST_SECONDS = (
    0.05  # threads that wait by spinning are asleep by then: OpenMP's after some ms, ONNX Runtime's too
)
MIN_CLEAN_ROUNDS = 3
MIN_CLEAN_SHARE = 0.2  # fewer clean blocks are a biased sample: mostly short blocks escape preemption


@dataclass(frozen=True)
class Block:
    """`calls` calls in a row: elapsed and CPU time (of all threads) in ns, involuntary context switches."""

    calls: int
    wall_ns: int
    cpu_ns: int
    preemptions: int

    @property
    def call_ns(self) -> float:
        return self.wall_ns / self.calls

    @property
    def call_cpu_ns(self) -> float:
        return self.cpu_ns / self.calls


def block_timer(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[int], Block]:
    """A function that times a block of that many calls `function(*arguments)`.

    The call is written out with its arguments as names: no tuple is unpacked in the loop, whose own cost
    is some 10 ns per call.
    """
    names = {f"a{index}": argument for index, argument in enumerate(arguments)}
    timer = timeit.Timer(f"f({', '.join(names)})", globals={"f": function, **names})

    def measure(calls: int) -> Block:
        preemptions = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        timer.timeit(calls)  # turns the garbage collector off meanwhile
        wall = time.perf_counter_ns() - wall
        cpu = time.process_time_ns() - cpu
        preemptions = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - preemptions
        return Block(calls, wall, cpu, preemptions)

    return measure


def calls_per_block(measure: Callable[[int], Block], seconds: float) -> int:
    """How many calls fill about `seconds`; at least one."""
    calls = 1
    while True:
        block = measure(calls)
        if block.wall_ns >= seconds * 5e8:
            return max(1, round(calls * seconds * 1e9 / block.wall_ns))
        calls *= 2


@dataclass(frozen=True)
class HotCall:
    """Best time of one call in ns; `best_cpu_ns` is the least CPU time, summed over threads."""

    best_ns: float
    best_cpu_ns: float
    blocks: int


def hot_call(
    function: Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    seconds: float = 0.3,
    block_seconds: float = 0.005,
) -> HotCall:
    """Time `function(*arguments)` in its steady state; the caller warms it up."""
    measure = block_timer(function, arguments)
    calls = calls_per_block(measure, block_seconds)
    end = time.perf_counter() + seconds
    blocks = [measure(calls)]
    while time.perf_counter() < end:
        blocks.append(measure(calls))
    return HotCall(
        best_ns=min(block.call_ns for block in blocks),
        best_cpu_ns=min(block.call_cpu_ns for block in blocks),
        blocks=len(blocks),
    )


@dataclass(frozen=True)
class Round:
    """One block of the baseline and one of the candidate, right after each other."""

    baseline: Block
    candidate: Block

    @property
    def speedup(self) -> float:
        return self.baseline.call_ns / self.candidate.call_ns

    @property
    def cpu_speedup(self) -> float:
        return self.baseline.call_cpu_ns / max(self.candidate.call_cpu_ns, 1.0)

    @property
    def clean(self) -> bool:
        return self.baseline.preemptions == 0 and self.candidate.preemptions == 0

    def raw(self) -> dict[str, dict[str, int]]:
        return {"baseline": asdict(self.baseline), "candidate": asdict(self.candidate)}


def interleave(
    baseline: Callable[[int], Block],
    candidate: Callable[[int], Block],
    *,
    seconds: float,
    block_seconds: float,
    min_rounds: int,
    rest_seconds: float = 0.0,
) -> list[Round]:
    """Alternate blocks of both for about `seconds`, in at least `min_rounds` rounds.

    Every second round begins with the other one, so that neither always finds the caches warmer. Where `rest_seconds` is
    not 0, a rest and an untimed block, which do not count into `seconds`, come before each block: worker threads spin for
    some milliseconds after their last task, on the CPUs that the other one is timed on, and the calls after a rest find
    sleeping threads and cold caches.
    """
    baseline_calls = calls_per_block(baseline, block_seconds)
    candidate_calls = calls_per_block(candidate, block_seconds)

    end = time.perf_counter() + seconds

    def block(measure: Callable[[int], Block], calls: int) -> Block:
        nonlocal end
        if rest_seconds:
            begin = time.perf_counter()
            time.sleep(rest_seconds)
            measure(calls)
            end += time.perf_counter() - begin
        return measure(calls)

    rounds: list[Round] = []
    while len(rounds) < min_rounds or (time.perf_counter() < end and len(rounds) < MAX_ROUNDS):
        if len(rounds) % 2:
            second = block(candidate, candidate_calls)
            first = block(baseline, baseline_calls)
        else:
            first = block(baseline, baseline_calls)
            second = block(candidate, candidate_calls)
        rounds.append(Round(first, second))
    return rounds


@dataclass(frozen=True)
class Comparison:
    """What the rounds say.

    Attributes:
        speedup: baseline time / candidate time; the figure to quote.
        basis: where it comes from: "clean" (median of rounds without preemption), "cpu" (median of CPU time
            ratios: one thread and too few clean rounds) or "wall" (median of all rounds).
        wall_speedup, cpu_speedup, clean_speedup: the three medians; clean is None where too few rounds are clean.
        spread: interquartile range of the ratios behind `speedup`, over it.
        baseline_ns, candidate_ns: median time of a call.
    """

    speedup: float
    basis: str
    wall_speedup: float
    cpu_speedup: float
    clean_speedup: float | None
    spread: float
    rounds: int
    clean_rounds: int
    baseline_ns: float
    candidate_ns: float


def compare(rounds: Sequence[Round], threads: int) -> Comparison:
    """Summarise `rounds` (at least one)."""
    clean = [r for r in rounds if r.clean]
    wall = statistics.median(r.speedup for r in rounds)
    cpu = statistics.median(r.cpu_speedup for r in rounds)
    is_enough = len(clean) >= max(MIN_CLEAN_ROUNDS, MIN_CLEAN_SHARE * len(rounds))
    clean_speedup = statistics.median(r.speedup for r in clean) if is_enough else None
    if clean_speedup is not None:
        speedup, basis, used = clean_speedup, "clean", clean
    elif threads == 1:
        # With several threads, CPU time sums over them and does not measure speed.
        speedup, basis, used = cpu, "cpu", list(rounds)
    else:
        speedup, basis, used = wall, "wall", list(rounds)
    quoted = [r.cpu_speedup if basis == "cpu" else r.speedup for r in used]
    quartiles = statistics.quantiles(quoted, n=4) if len(quoted) > 1 else [quoted[0]] * 3
    return Comparison(
        speedup=speedup,
        basis=basis,
        wall_speedup=wall,
        cpu_speedup=cpu,
        clean_speedup=clean_speedup,
        spread=(quartiles[2] - quartiles[0]) / speedup,
        rounds=len(rounds),
        clean_rounds=len(clean),
        baseline_ns=statistics.median(_call_ns(r.baseline, basis) for r in used),
        candidate_ns=statistics.median(_call_ns(r.candidate, basis) for r in used),
    )


def _call_ns(block: Block, basis: str) -> float:
    return block.call_cpu_ns if basis == "cpu" else block.call_ns
