"""Records of classes, objects and functions: what each held when a trace first met it."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from staticrt.frontend.guards.records import MISSING, Compared, is_torchs
from staticrt.frontend.guards.state_values import dict_of, members_of, same_slots
from staticrt.native import _C

# Functions that Dynamo's first run in a process replaces permanently by equivalent ones that keep notes.
_REPLACED_BY_DYNAMO: dict[type, frozenset[str]] = {torch.nn.Module: frozenset({"__init__", "__setstate__"})}


class ClassRecord(Compared):
    """What a class itself has by names that code may read, and its bases.

    Args:
        names: the names, to which more are added.
    """

    part = "classes"

    def __init__(self, owner: type, names: set[str]) -> None:
        self.owner = owner
        self.own = dict_of(owner)
        self.order = owner.__mro__
        self.saved: dict[str, Any] = {}
        self._names = names
        self._titles = _titles(owner)
        self._left_out = _REPLACED_BY_DYNAMO.get(owner, frozenset())

    def read(self, names: set[str]) -> list[tuple[str, Any]]:
        """Remember the values of these names; returns those that have one."""
        found = [(name, self.own[name]) for name in self._meant(names) if name not in self.saved]
        self.saved.update(found)
        return [(f"{self.owner.__name__}.{name}", value) for name, value in found]

    def data(self) -> set[str]:
        """Names of what the class has beside functions, which code may read without naming it."""
        if is_torchs(self.owner.__module__):
            return set()
        return {
            name
            for name, value in self.own.items()
            if not name.startswith("__") and not hasattr(type(value), "__get__")
        }

    def _meant(self, names: set[str]) -> set[str]:
        return (names & self.own.keys()) - self._left_out

    def _differing(self) -> list[str]:
        names = self._meant(self._names) | self.saved.keys()
        return sorted(
            name for name in names if self.own.get(name, MISSING) is not self.saved.get(name, MISSING)
        )

    def changes(self) -> Iterable[str]:
        renamed = self._titles != _titles(self.owner)
        return [f"{self.owner.__name__}.{name}" for name in [*self._differing(), *["__name__"] * renamed]]

    def restore(self) -> None:
        if is_torchs(self.owner.__module__):
            return
        if self._titles != _titles(self.owner):
            self.owner.__name__, self.owner.__qualname__ = self._titles
        for name in self._differing():
            if name in self.saved:
                setattr(self.owner, name, self.saved[name])
            else:
                delattr(self.owner, name)

    def entry(self) -> tuple[Any, ...]:
        return self.owner, self.own, self.order, self.saved, self._titles, self._left_out


def _titles(owner: type) -> tuple[str, str]:
    """The names of a class, without calling its metaclass."""
    own = vars(type)
    return own["__name__"].__get__(owner), own["__qualname__"].__get__(owner)


class SlotsRecord(Compared):
    """Attributes of an object that lie in slots."""

    part = "slots"

    def __init__(self, path: str, live: Any, slots: dict[str, Any]) -> None:
        self.path = path
        self.live = live
        self.saved = slots

    def changes(self) -> Iterable[str]:
        return () if same_slots(self.live, self.saved) else [self.path]

    def restore(self) -> None:
        for member in members_of(type(self.live)):
            name = member.__name__
            value = self.saved.get(name, MISSING)
            if value is MISSING and hasattr(self.live, name):
                member.__delete__(self.live)
            elif value is not MISSING and getattr(self.live, name, MISSING) is not value:
                member.__set__(self.live, value)

    def entry(self) -> tuple[Any, ...]:
        members = members_of(type(self.live))
        return self.live, [(member, self.saved.get(member.__name__, MISSING)) for member in members]


class LocalRecord(SlotsRecord):
    """Attributes that an object has for each thread."""

    part = ""

    def restore(self) -> None:
        if not same_slots(self.live, self.saved):
            attributes = vars(self.live)
            attributes.clear()
            attributes.update(self.saved)

    def holds(self) -> bool:
        return same_slots(self.live, self.saved)


class MembersRecord(Compared):
    """The contents of an object of C: arguments of an exception, functions of a property, the callable of a `partial`."""

    part = "slots"
    _MEMBERS: tuple[tuple[type, tuple[str, ...]], ...] = (
        (BaseException, ("args",)),
        (property, ("fget", "fset", "fdel")),
        (staticmethod, ("__func__",)),
        (classmethod, ("__func__",)),
        (functools.partial, ("func", "args", "keywords")),
    )

    def __init__(self, path: str, live: Any) -> None:
        self.path = path
        self.live = live
        self._owner, names = next(item for item in self._MEMBERS if isinstance(live, item[0]))
        self._members = [vars(self._owner)[name] for name in names]
        self.saved = self._now()

    def _now(self) -> list[Any]:
        return [member.__get__(self.live) for member in self._members]

    def changes(self) -> Iterable[str]:
        pairs = zip(self._members, self._now(), self.saved, strict=True)
        return [f"{self.path}.{member.__name__}" for member, now, saved in pairs if now is not saved]

    def restore(self) -> None:
        if not self.changes():
            return
        if isinstance(self.live, BaseException):
            self.live.args = self.saved[0]
        elif isinstance(self.live, functools.partial):
            functools.partial.__setstate__(self.live, (*self.saved, vars(self.live)))  # type: ignore[attr-defined]
        elif isinstance(self.live, property):
            property.__init__(self.live, *self.saved, self.live.__doc__)  # type: ignore[call-arg]
        else:
            self._owner.__init__(self.live, *self.saved)  # type: ignore[misc]

    def entry(self) -> tuple[Any, ...]:
        return self.live, list(zip(self._members, self.saved, strict=True))


class ObjectRecord(Compared):
    """The class of an object, and which dict has its attributes.

    Args:
        is_held: a guard keeps it alive.
    """

    part = "objects"

    def __init__(self, path: str, live: Any, is_held: bool) -> None:
        self.is_held = is_held
        self.path = path
        self.live = live
        self.kind = type(live)
        self.attributes = _attributes(live)

    def changes(self) -> Iterable[str]:
        return () if type(self.live) is self.kind else [f"{self.path}.__class__"]

    def restore(self) -> None:
        if type(self.live) is not self.kind:
            self.live.__class__ = self.kind

    def entry(self) -> tuple[Any, ...]:
        live = self.live if self.is_held or not self.kind.__weakrefoffset__ else weakref.ref(self.live)
        return live, self.kind, self.attributes


class FunctionRecord(Compared):
    """The code, defaults and names of a function."""

    part = "functions"
    _NAMES = (
        "__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__", "__module__",
    )  # fmt: skip

    def __init__(self, path: str, live: types.FunctionType) -> None:
        self.path = path
        self.live = live
        self.saved = tuple(getattr(live, name) for name in self._NAMES)
        self.attributes = _attributes(live)

    def _differing(self) -> list[tuple[str, Any]]:
        saved = zip(self._NAMES, self.saved, strict=True)
        return [(name, value) for name, value in saved if getattr(self.live, name) is not value]

    def changes(self) -> Iterable[str]:
        found = [f"{self.path}.{name}" for name, _value in self._differing()]
        if self.attributes is MISSING:
            found += [f"{self.path}.{name}" for name in _C.attributes_of(self.live) or ()]
        return found

    def restore(self) -> None:
        for name, value in self._differing():
            setattr(self.live, name, value)
        if self.attributes is MISSING:
            (_C.attributes_of(self.live) or {}).clear()

    def entry(self) -> tuple[Any, ...]:
        code, *defaults = self.saved[:3]
        given = (MISSING if x is None else x for x in defaults)
        return self.live, code, *given, self.attributes, self.saved[3:]


def _attributes(value: Any) -> Any:
    """The dict of an object's attributes; `MISSING` if there is none, or a function's is empty."""
    found = _C.attributes_of(value)
    return MISSING if found is None or (not found and isinstance(value, types.FunctionType)) else found


def slots_record(path: str, live: Any, slots: dict[str, Any]) -> SlotsRecord:
    """The record of attributes that `slots_of` gave."""
    return (LocalRecord if isinstance(live, threading.local) else SlotsRecord)(path, live, slots)
