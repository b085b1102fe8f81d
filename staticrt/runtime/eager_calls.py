"""Records eager calls for profiles: how long each took, and why it ran eagerly."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class EagerSpan:
    """One eager call. Times in ns of `time.perf_counter_ns()`."""

    name: str
    reason: str
    where: str
    begin_ns: int
    end_ns: int


class _Watch(threading.local):
    spans: list[EagerSpan] | None = None


_watch = _Watch()


@contextlib.contextmanager
def watch_eager() -> Iterator[list[EagerSpan]]:
    """Collect this thread's eager calls."""
    before, _watch.spans = _watch.spans, []
    try:
        yield _watch.spans
    finally:
        _watch.spans = before


def nobody_watches() -> bool:
    """Whether this thread's eager calls need not be recorded."""
    return _watch.spans is None


@contextlib.contextmanager
def eager_call(name: str, reason: str, where: str) -> Iterator[None]:
    """An eager call of a compiled callable, recorded inside of `watch_eager`."""
    spans = _watch.spans
    if spans is None:
        yield
        return
    begin = time.perf_counter_ns()
    try:
        yield
    finally:
        spans.append(EagerSpan(name, reason, where, begin, time.perf_counter_ns()))
