"""Locks among the globals of model code: a trace goes on until the code reads one.

Libraries take a lock to make or install something once; later calls return before they come to it. Profilers do not see
that `with` takes a lock, and a trace that took one would let other threads wait, or show them fake tensors in what the lock
protects. So code that names a lock looks its globals up in a dict that stops the trace at the lock.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Set
from typing import Any

from staticrt.frontend.guards.code_objects import SUSPENDED, cached_by_code
from staticrt.frontend.guards.code_reads import global_names
from staticrt.frontend.guards.effects import is_lock
from staticrt.frontend.guards.late_effects import global_writes
from staticrt.frontend.guards.special_names import names_of
from staticrt.native import _C

# How code finds globals by computed names.
FIND_GLOBALS = frozenset(
    ("globals", "vars", "locals", "eval", "exec", "__globals__", "__dict__", "f_globals", "__import__")
)


def global_locks(frame: types.FrameType) -> frozenset[str]:
    """The names of the locks that code reads among its globals, if another dict may stand for these; else none."""
    code, scope = frame.f_code, frame.f_globals
    locks = frozenset(name for name in global_names(code) if is_lock(scope.get(name)))
    return locks if locks and _only_looks_up(code) else frozenset()


@cached_by_code
def _only_looks_up(code: types.CodeType) -> bool:
    """Whether code neither writes its globals, hands them on, nor outlives its call."""
    # The body of a class looks names up by another instruction, which bypasses `__getitem__`.
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_flags & SUSPENDED
    makes_functions = any(isinstance(value, types.CodeType) for value in code.co_consts)
    finds = not names_of(code).isdisjoint(FIND_GLOBALS)
    return is_function and not makes_functions and not global_writes(code) and not finds


class _Globals(dict[str, Any]):
    """Looks globals up in their own dict, so that changes are seen at once, and reports locks. It also has a copy of them,
    which C code reads.
    """

    def __init__(self, scope: dict[str, Any], locks: Set[str], report: Callable[[str], None]) -> None:
        super().__init__(scope)
        self.scope = scope
        self._locks = locks
        self._report = report

    def __getitem__(self, name: str) -> Any:
        if name in self._locks:
            self._report(name)
        return self.scope[name]


class LockWatch:
    """Lets frames that name locks look their globals up in another dict, until they end.

    Args:
        refuse: called with a phrase and the frame; it raises.
    """

    def __init__(self, refuse: Callable[[str, types.FrameType], None]) -> None:
        self._refuse = refuse
        self._given: dict[types.FrameType, _Globals] = {}

    def begin(self, frame: types.FrameType) -> None:
        """A function begins."""
        if self._given and "f_globals" in names_of(frame.f_code):
            self._refuse("may look at the globals of its callers, of which one names a lock", frame)
        if not (locks := global_locks(frame)):
            return

        def report(name: str) -> None:
            self._refuse(f"uses the lock {name!r}", frame)

        given = self._given[frame] = _Globals(frame.f_globals, locks, report)
        if not _C.set_globals(frame, given):
            del self._given[frame]
            report(min(locks))

    def end(self, frame: types.FrameType) -> None:
        """A function has returned or raised: its frame has its own globals again."""
        if frame in self._given:
            _C.set_globals(frame, self._given[frame].scope)
            del self._given[frame]

    def stop(self) -> None:
        """The watch ends: frames that have not returned have their own globals again."""
        for frame in [*self._given]:
            self.end(frame)
