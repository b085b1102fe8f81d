"""Locks that a forked child finds free.

A child has only the thread that forked. What another thread held, such as the lock of a trace it was making, no thread of
the child would ever release.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def reentrant() -> Any:
    """A `threading.RLock`."""
    lock = threading.RLock()
    free_in_children(lock)
    return lock


def free_in_children(lock: Any) -> None:
    """Let a forked child find a reentrant lock free, unless the thread that forks holds it."""
    _locks.add(lock)


def members(found: weakref.WeakSet[Any]) -> list[Any]:
    """What a weak set holds, to which other threads may add meanwhile: its own iterator would raise."""
    return [member for ref in list(vars(found)["data"]) if (member := ref()) is not None]


def owned() -> list[Any]:
    """The locks that this thread holds."""
    return [lock for lock in members(_locks) if lock._is_owned()]


def release_all_but(held: list[Any]) -> None:
    """Release what this thread holds besides some locks."""
    for lock in owned():
        while lock not in held and lock._is_owned():
            lock.release()


def _free_all() -> None:
    for lock in members(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_all)
