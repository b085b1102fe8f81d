"""Python's garbage collector during first calls, which make many objects that live on."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from staticrt import locks, tuning

_lock = locks.reentrant()
_users = 0
_before = (0, 0, 0)


@contextlib.contextmanager
def seldom_collecting() -> Iterator[None]:
    """Raise the limit of new objects that starts a collection, for the whole process.

    Each node of a graph is several objects, and all of them stay alive: visiting them in every collection took a seventh of
    a first call. A limit that another thread sets meanwhile stays.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < tuning.COLLECTED_OBJECTS:
                gc.set_threshold(tuning.COLLECTED_OBJECTS, *_before[1:])
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and gc.get_threshold() == (tuning.COLLECTED_OBJECTS, *_before[1:]):
                gc.set_threshold(*_before)
