"""What model code reads by name: globals, attributes of modules and classes, free variables, the environment.

A capture holds while these are the same objects. They are found when a function of model code is first entered,
before it can change them, by the names in its code: more than it will read, never less, but for names that are
computed while it runs.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from staticrt.frontend.reasons import is_capture_file, is_user_file
from staticrt.frontend.state import Snapshot
from staticrt.frontend.state_values import dict_of
from staticrt.frontend.tracing import SymbolicInt

_MISSING = object()
_WRITES_FREE = frozenset({"STORE_DEREF", "DELETE_DEREF"})


class Reads:
    """Adds to a snapshot what functions may read by name.

    Args:
        snapshot: gets it.
        refuse: called with a phrase and the frame where a capture cannot hold at all.
    """

    def __init__(self, snapshot: Snapshot, refuse: Callable[[str, types.FrameType], None]) -> None:
        self._snapshot = snapshot
        self._refuse = refuse
        self._codes: set[types.CodeType] = set()
        self._done: set[tuple[Any, ...]] = set()

    def enter(self, frame: types.FrameType) -> None:
        """A function of model code begins."""
        code = frame.f_code
        if code.co_filename.startswith("<eval_with_key>"):  # a graph: Dynamo guards what it reads
            return
        first = frame.f_locals.get(code.co_varnames[0], _MISSING) if code.co_argcount else _MISSING
        owner = first if isinstance(first, type) else type(first)
        if (code, owner) in self._done:
            return
        self._done.add((code, owner))
        names = names_of(code)
        if first is not _MISSING:
            self._class(owner, names)
            for name in names & _attributes(first).keys():
                self._no_iterator(_attributes(first)[name], name, frame)
        if code in self._codes:
            return
        self._codes.add(code)
        self._snapshot.read_names |= names
        scope = frame.f_globals
        for name in names & scope.keys():
            self._global(scope, name, names, frame)
        for name in code.co_freevars:
            if not _is_local(frame, name):
                self._free(frame, name, names)
        if "environ" in names or "getenv" in names:
            self._snapshot.add("os.environ", getattr(os.environ, "_data", None))

    def _global(
        self, scope: dict[str, Any], name: str, names: frozenset[str], frame: types.FrameType
    ) -> None:
        value = scope[name]
        if value is SymbolicInt or name.startswith("__"):
            return
        self._no_iterator(value, name, frame)
        if isinstance(value, types.ModuleType):
            self._module(value, names, frame)
        elif isinstance(value, type):
            self._class(value, names)
            self._snapshot.add_global(scope, name)
        else:
            self._snapshot.add_global(scope, name)

    def _free(self, frame: types.FrameType, name: str, names: frozenset[str]) -> None:
        value = frame.f_locals.get(name, _MISSING)
        self._no_iterator(value, name, frame)
        if isinstance(value, types.ModuleType):
            self._module(value, names, frame)
        elif isinstance(value, type):
            self._class(value, names)
        elif value is not _MISSING:
            self._snapshot.add(name, value)
        if name in _written_free(frame.f_code):
            self._refuse(f"writes the variable {name!r} of a function that has returned", frame)

    def _module(self, module: types.ModuleType, names: frozenset[str], frame: types.FrameType) -> None:
        """Names of a module of the user's, and of those in it."""
        filename = getattr(module, "__file__", None) or ""
        if (module.__name__, names) in self._done or not is_user_file(filename or "<none>"):
            return
        self._done.add((module.__name__, names))
        for name in names & vars(module).keys():
            self._global(vars(module), name, names, frame)

    def _class(self, owner: type, names: frozenset[str]) -> None:
        """Attributes that classes of the user's give their objects."""
        if (owner, names) in self._done:
            return
        self._done.add((owner, names))
        for each in owner.__mro__:
            if _is_user_class(each):
                attributes = dict_of(each)
                # A name that is missing here may be given later, and hide that of a base class.
                for name in names if each is owner else names & attributes.keys():
                    self._snapshot.add_global(attributes, name, each)

    def _no_iterator(self, value: Any, name: str, frame: types.FrameType) -> None:
        if hasattr(type(value), "__next__") and not isinstance(value, type):
            self._refuse(f"reads the iterator {name!r}", frame)


@functools.lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> frozenset[str]:
    """Names that a function may look up: its globals and attributes, strings it may give `getattr`, its own."""
    strings = (value for value in code.co_consts if type(value) is str and value.isidentifier())
    return frozenset((*code.co_names, *strings, code.co_name))


@functools.lru_cache(maxsize=4096)
def _written_free(code: types.CodeType) -> frozenset[str]:
    import dis

    free = set(code.co_freevars)
    return frozenset(
        i.argval for i in dis.get_instructions(code) if i.opname in _WRITES_FREE and i.argval in free
    )


def _is_local(frame: types.FrameType, name: str) -> bool:
    """Whether a free variable belongs to a function of the model that is running."""
    outer = frame.f_back
    while outer is not None and not is_capture_file(outer.f_code.co_filename):
        if name in outer.f_code.co_cellvars and _encloses(outer.f_code, frame.f_code):
            return True
        outer = outer.f_back
    return False


def _encloses(outer: types.CodeType, inner: types.CodeType) -> bool:
    return any(
        each is inner or _encloses(each, inner)
        for each in outer.co_consts
        if isinstance(each, types.CodeType)
    )


def _attributes(value: Any) -> dict[str, Any]:
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _is_user_class(owner: type) -> bool:
    module = sys.modules.get(owner.__module__)
    filename = getattr(module, "__file__", None)
    return owner.__module__ != "builtins" and (
        is_user_file(filename) if isinstance(filename, str) else owner.__module__ == "__main__"
    )
