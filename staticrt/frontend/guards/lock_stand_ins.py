"""Locks among the globals of model code: a trace goes on until the code takes one.

Libraries take a lock to make or install something once; later calls return before they come to it. Profilers do not see
that `with` takes a lock, and a trace that took one would let other threads wait, or show them fake tensors in what the lock
protects. So code that names a lock reads a copy of its globals in which a stand-in stops the trace when it is used.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from staticrt.frontend.guards.code_objects import cached_by_code
from staticrt.frontend.guards.effects import is_lock
from staticrt.frontend.guards.late_effects import global_writes
from staticrt.frontend.guards.special_names import names_of
from staticrt.native import _C

# How code finds globals by computed names.
FIND_GLOBALS = frozenset(
    ("globals", "vars", "locals", "eval", "exec", "__globals__", "__dict__", "f_globals", "__import__")
)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def global_locks(frame: types.FrameType) -> list[str]:
    """The names of the locks that code reads among its globals, if it may read a copy of these; else none."""
    code, scope = frame.f_code, frame.f_globals
    locks = [name for name in code.co_names if is_lock(scope.get(name))]
    return locks if locks and _may_read_copy(code) else []


@cached_by_code
def _may_read_copy(code: types.CodeType) -> bool:
    """Whether code neither writes its globals, hands them on, nor outlives its call."""
    makes_functions = any(isinstance(value, types.CodeType) for value in code.co_consts)
    hands_on = makes_functions or bool(code.co_flags & _SUSPENDED)
    return not hands_on and not global_writes(code) and names_of(code).isdisjoint(FIND_GLOBALS)


class _StandIn:
    """Stands for a lock, and stops the trace when it is used."""

    def __init__(self, stop: Callable[[], NoReturn]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._stop()

    def __exit__(self, *_error: object) -> None:
        """`with` looks it up before it enters."""

    def __getattr__(self, _name: str) -> NoReturn:
        self._stop()


class LockStandIns:
    """Gives frames copies of their globals. What changes a global meanwhile is seen as any change of the model's state.

    Args:
        refuse: called with a phrase and the frame; it raises.
    """

    def __init__(self, refuse: Callable[[str, types.FrameType], None]) -> None:
        self._refuse = refuse
        self._given: list[
            tuple[types.FrameType, dict[str, Any], dict[str, Any]]
        ] = []  # frame, globals, the copy of them

    def begin(self, frame: types.FrameType) -> None:
        """A function begins."""
        names = global_locks(frame)
        if not names:
            return
        scope = frame.f_globals
        copy = dict(scope)
        for name in names:
            copy[name] = _StandIn(partial(self._stop, name, frame))
        self._given.append((frame, scope, copy))
        if not _C.set_globals(frame, copy):
            self._given.pop()
            self._refuse(f"uses the lock {names[0]!r}", frame)

    def end(self, frame: types.FrameType) -> None:
        """A function has returned or raised: its frame has its own globals again."""
        if self._given and self._given[-1][0] is frame:
            self._take_back()

    def stop(self) -> None:
        """The watch ends: frames that have not returned have their own globals again."""
        while self._given:
            self._take_back()

    def _take_back(self) -> None:
        frame, scope, _copy = self._given[-1]
        _C.set_globals(frame, scope)
        self._given.pop()

    def _stop(self, name: str, frame: types.FrameType) -> NoReturn:
        self._refuse(f"uses the lock {name!r}", frame)
        raise AssertionError("a refusal raises")
