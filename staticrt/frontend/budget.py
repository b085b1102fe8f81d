"""How long tracing may take, so that a first answer comes in bounded time.

Most models are traced in a fraction of a second. Sizes that torch tracks with sympy, and graphs that Dynamo cuts again
and again, can take minutes. So each call has an account of CPU seconds of its thread (waiting for other processes costs
nothing). Tracing charges the account and checks it at every operator or instruction. If a trace of a whole model with its
backward runs out of time, it is tried again with constant sizes; other calls go to Dynamo. A function that Dynamo does not
finish runs eagerly, and the functions that it calls are tried in turn with the time left.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator


class OutOfTime(BaseException):
    """Tracing took longer than it may; no `except Exception` of model code or torch stops it."""


class _Local(threading.local):
    seconds: float = 0  # what the option says
    left: float | None = None  # seconds in the account; None: there is none
    deadline: float = math.inf
    earliest: float = 0  # wall time before which the account cannot be used up


_local = _Local()


@contextlib.contextmanager
def account(seconds: float | None, share: float = 1.0) -> Iterator[None]:
    """Open an account for one call of this thread, unless a call around it has one.

    Args:
        seconds: CPU time that the option `trace_seconds` allows; None: no bound.
        share: the part of it that the account gets.
    """
    if _local.left is not None or seconds is None:
        yield
        return
    _local.seconds, _local.left = seconds, seconds * share
    try:
        yield
    finally:
        _local.left = None


@contextlib.contextmanager
def charged(share: float) -> Iterator[None]:
    """Charge the account with what runs within.

    Args:
        share: the part of the time left that it may take.

    Raises:
        OutOfTime: from `check`, or at once where nothing is left.
    """
    if _local.left is None:
        yield
        return
    outer, begin = _local.deadline, time.thread_time()
    left = _local.left if outer == math.inf else outer - begin
    if left <= 0:
        raise OutOfTime
    _local.deadline, _local.earliest = begin + left * share, 0
    try:
        yield
    finally:
        _local.deadline, _local.earliest = outer, 0
        if outer == math.inf:
            _local.left -= time.thread_time() - begin


def state() -> tuple[float | None, float]:
    """What `put_back` takes."""
    return _local.left, _local.deadline


def put_back(state: tuple[float | None, float]) -> None:
    """Close the accounts and charges that this thread has opened since."""
    (left, _local.deadline), _local.earliest = state, 0
    if left is None:
        _local.left = None


def check() -> None:
    """Raise OutOfTime if the work that is charged has taken too long."""
    if _local.deadline == math.inf or time.monotonic() < _local.earliest:
        return
    # Reading the CPU time of a thread is a system call; it passes no faster than wall time.
    left = _local.deadline - time.thread_time()
    if left < 0:
        raise OutOfTime
    _local.earliest = time.monotonic() + left


def reason() -> str:
    """What `explain()` says of work that ran out of time."""
    return f"tracing it takes longer than trace_seconds={_local.seconds:g} allows"
