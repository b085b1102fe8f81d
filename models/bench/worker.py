"""Measure one model with one peer, in a process of its own."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from staticrt.models import zoo
from staticrt.models.bench import job as jobs
from staticrt.models.bench import memory, timing
from staticrt.models.bench.check import Difference, difference, leaves
from staticrt.models.bench.job import Job, Result
from staticrt.models.bench.peers import resolve

WARM_UP_SECONDS = 0.1
WARM_UP_CALLS = (3, 50)  # at least, at most
STEADY_FACTOR = 1.5  # a call is steady if it takes at most so many times the median
MEMORY_CALLS = 2

Stage = Callable[[str], None]


def pin(cpus: Sequence[int]) -> None:
    """Let every thread of this process run on `cpus` only; on any if there are none."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cpus)
        except ProcessLookupError:
            continue  # it ended meanwhile


def run_pair(job: Job, stage: Stage) -> Result:
    """Prepare, check and time `job.peer` on `job.model` against eager.

    Preparation may use all CPUs, as it would for a user; from then on everything is pinned. The peer gets
    a module of its own, so that what it does to it cannot change the baseline.
    """
    setting = job.setting
    entry, peer = zoo.get(job.model), resolve(job.peer)
    torch.set_num_threads(setting.threads)
    with torch.no_grad():
        stage("importing")
        peer.load()
        stage("building")
        eager = entry.build(setting.seed)
        module = copy.deepcopy(eager)
        first, second = entry.inputs(setting.seed + 1), entry.inputs(setting.seed + 2)
        kept = [x.clone() for x in (*first, *second)]
        expected, expected_second = _copies(eager(*first)), _copies(eager(*second))

        memory.trim()
        floor = memory.anonymous_bytes()
        eager_peak = memory.peak_during(lambda: _repeat(eager, first))

        stage("preparing")
        begin = time.perf_counter()
        call: Callable[..., Any] = module
        answer: Any = None

        def prepare() -> None:
            nonlocal call, answer
            options = setting.options if peer.name == "staticrt" else {}
            call = peer.prepare(module, first, setting.threads, **options)
            stage("first call")
            answer = call(*first)

        prepare_peak = memory.peak_during(prepare)
        first_answer = time.perf_counter() - begin
        pin(job.cpus)
        stage("warming up")
        calls_end, warm_up = _warm_up(call, first, begin)

        stage("checking")
        held = leaves(answer)
        held_copies = [x.clone() for x in held]
        tolerance = {"rtol": entry.rtol, "atol": entry.atol}
        later = _copies(call(*second))
        differences = [difference(held_copies, expected, **tolerance)]
        differences.append(difference(later, expected_second, **tolerance))

        stage("measuring memory")
        memory.trim()
        held_bytes = memory.anonymous_bytes()
        steady_peak = memory.peak_during(lambda: _repeat(call, first))

        stage("timing")
        rounds = timing.interleave(
            timing.block_timer(eager, first),
            timing.block_timer(call, first),
            seconds=setting.seconds,
            block_seconds=setting.block_seconds,
            min_rounds=setting.min_rounds,
            rest_seconds=timing.REST_SECONDS if setting.threads > 1 else 0.0,
        )
        comparison = timing.compare(rounds, setting.threads)
        # Warm up again: a peer may specialise only after the calls so far.
        differences.append(difference(_copies(call(*first)), expected, **tolerance))
        differences.append(difference(_copies(call(*second)), expected_second, **tolerance))
        stage("asking for facts")
        facts = peer.facts(call)

    worst = max(differences, key=lambda d: (d.reason is not None, d.absolute))
    is_overwritten = any(not _identical(a, b) for a, b in zip(held, held_copies, strict=True))
    wrote_input = any(not _identical(a, b) for a, b in zip((*first, *second), kept, strict=True))
    status, reason = _verdict(worst, is_overwritten, wrote_input)
    return {
        "status": status,
        "reason": reason,
        "max_abs_error": _finite(worst.absolute),
        "max_rel_error": _finite(worst.relative),
        "first_answer_s": first_answer,
        "steady_s": _steady_s(calls_end, warm_up, comparison),
        "eager_peak_bytes": _above(eager_peak, floor),
        "prepare_peak_bytes": _above(prepare_peak, floor),
        "held_bytes": _above(held_bytes, floor),
        "steady_peak_bytes": _above(steady_peak, floor),
        **asdict(comparison),
        "facts": facts,
        "cpus": list(job.cpus),
        "raw": {"rounds": [r.raw() for r in rounds], "warm_up_s": warm_up},
    }


def run(job: Job, stage: Stage) -> Result:
    """Do any kind of job."""
    if job.kind == jobs.PAIR:
        return run_pair(job, stage)
    torch.set_num_threads(job.setting.threads)
    stage("counting")
    if job.kind == jobs.FACTS:
        from staticrt.models.bench.counts import count

        return count(zoo.get(job.model), job.setting.seed)
    from staticrt.models.bench.limits import measure

    pin(job.cpus)
    return measure(job.setting)


def _repeat(call: Callable[..., Any], arguments: tuple[Tensor, ...]) -> None:
    for _ in range(MEMORY_CALLS):
        call(*arguments)


def _copies(answer: Any) -> list[Tensor]:
    return [x.clone() for x in leaves(answer)]


def _warm_up(
    call: Callable[..., Any], arguments: tuple[Tensor, ...], begin: float
) -> tuple[list[float], list[float]]:
    """Call until the time is steady. Returns when each call ended (s after the start) and how long it took (s)."""
    ends: list[float] = []
    durations: list[float] = []
    start = time.perf_counter()
    least, most = WARM_UP_CALLS
    while len(ends) < least or (len(ends) < most and time.perf_counter() - start < WARM_UP_SECONDS):
        before = time.perf_counter()
        call(*arguments)
        after = time.perf_counter()
        ends.append(after - begin)
        durations.append(after - before)
    return ends, durations


def _steady_s(ends: list[float], durations: list[float], comparison: timing.Comparison) -> float | None:
    """Seconds from the module to the end of the first call at steady speed; None if warm-up had none."""
    limit = STEADY_FACTOR * comparison.candidate_ns * 1e-9
    return next((end for end, duration in zip(ends, durations, strict=True) if duration <= limit), None)


def _above(peak: int | None, floor: int | None) -> int | None:
    return None if peak is None or floor is None else max(0, peak - floor)


def _finite(error: float) -> float | None:
    """None for infinity, which JSON cannot express."""
    return error if math.isfinite(error) else None


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(nan=0.5), b.nan_to_num(nan=0.5))


def _verdict(worst: Difference, is_overwritten: bool, wrote_input: bool) -> tuple[str, str | None]:
    if worst.reason is not None:
        return jobs.WRONG, worst.reason
    if is_overwritten:
        return jobs.OVERWRITTEN, "a later call changed an answer that the caller still held"
    if wrote_input:
        return jobs.WROTE_INPUT, "an argument was changed"
    return jobs.OK, None
