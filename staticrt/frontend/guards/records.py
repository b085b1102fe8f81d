"""What one piece of Python state held when a trace first met it: whether it still does, and how to put it back.

Each record gives one part of a `_C.StateGuard`, which compares the same in every later call.
"""

from __future__ import annotations

import array
import logging
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from staticrt.frontend.guards.state_values import (
    cell_content,
    content_of,
    dict_of,
    different_keys,
    has_bytes_of_ctypes,
    items_of,
    members_of,
    same_dict,
    same_list,
    same_slots,
)
from staticrt.native import _C

MISSING = _C.MISSING


class Record(Protocol):
    """One piece of state."""

    part: str  # of a `_C.StateGuard`; "": only Python compares it

    def changes(self) -> Iterable[str]:
        """Paths of what differs now."""

    def restore(self) -> None:
        """Put it back as it was."""

    def entry(self) -> tuple[Any, ...]:
        """What the part of the guard takes."""

    def holds(self) -> bool:
        """Whether nothing differs, where only Python compares it."""


class _Compared:
    """A record that C++ compares."""

    def holds(self) -> bool:
        raise AssertionError("C++ compares it")


class DictRecord(_Compared):
    """All keys and values of a dict, in order."""

    part = "dicts"

    def __init__(self, path: str, live: dict[Any, Any]) -> None:
        self.path = path
        self.live = live
        self.saved = dict(items_of(live))
        self.is_ordered = isinstance(live, OrderedDict)  # and tells of the order

    def changes(self) -> Iterable[str]:
        if same_dict(self.live, self.saved):
            return ()
        return [f"{self.path}.{key}" for key in different_keys(self.live, self.saved)]

    def restore(self) -> None:
        if not same_dict(self.live, self.saved):
            kind: Any = OrderedDict if isinstance(self.live, OrderedDict) else dict
            kind.clear(self.live)
            for key, item in self.saved.items():
                kind.__setitem__(self.live, key, item)

    def entry(self) -> tuple[Any, ...]:
        return self.live, self.saved


class ListRecord(_Compared):
    """The items of a list, deque or set, in order."""

    part = "lists"

    def __init__(self, path: str, live: list[Any] | deque[Any] | set[Any]) -> None:
        self.path = path
        self.live: Any = live
        self.saved = list(live)

    def changes(self) -> Iterable[str]:
        return () if same_list(self.live, self.saved) else [self.path]

    def restore(self) -> None:
        if not same_list(self.live, self.saved):
            self.live.clear()
            (self.live.update if isinstance(self.live, set) else self.live.extend)(self.saved)

    def entry(self) -> tuple[Any, ...]:
        return self.live, self.saved


class CellRecord(_Compared):
    """A variable of a closure."""

    part = "cells"

    def __init__(self, path: str, cell: types.CellType) -> None:
        self.path = path
        self.cell = cell
        self.saved = cell_content(cell)

    def changes(self) -> Iterable[str]:
        return () if cell_content(self.cell) is self.saved else [self.path]

    def restore(self) -> None:
        if cell_content(self.cell) is not self.saved:
            if self.saved is MISSING:
                del self.cell.cell_contents
            else:
                self.cell.cell_contents = self.saved

    def entry(self) -> tuple[Any, ...]:
        return self.cell, self.saved


class ScopeRecord(_Compared):
    """What some names mean in the dict of a module; nothing, maybe."""

    part = "scopes"

    def __init__(self, live: dict[str, Any]) -> None:
        self.live = live
        self.saved: dict[str, Any] = {}

    def changes(self) -> Iterable[str]:
        return [name for name, value in self.saved.items() if self.live.get(name, MISSING) is not value]

    def restore(self) -> None:
        for name in () if _is_torchs(str(self.live.get("__name__"))) else self.changes():
            if self.saved[name] is MISSING:
                del self.live[name]
            else:
                self.live[name] = self.saved[name]

    def entry(self) -> tuple[Any, ...]:
        return self.live, self.saved


class ClassRecord(_Compared):
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

    def read(self, names: set[str]) -> list[tuple[str, Any]]:
        """Remember what these names mean; those that mean something, with what."""
        found = [(name, self.own[name]) for name in names & self.own.keys() if name not in self.saved]
        self.saved.update(found)
        return [(f"{self.owner.__name__}.{name}", value) for name, value in found]

    def _differing(self) -> list[str]:
        names = self._names & self.own.keys() | self.saved.keys()
        return sorted(
            name for name in names if self.own.get(name, MISSING) is not self.saved.get(name, MISSING)
        )

    def changes(self) -> Iterable[str]:
        renamed = self._titles != _titles(self.owner)
        return [f"{self.owner.__name__}.{name}" for name in [*self._differing(), *["__name__"] * renamed]]

    def restore(self) -> None:
        if _is_torchs(self.owner.__module__):
            return
        if self._titles != _titles(self.owner):
            self.owner.__name__, self.owner.__qualname__ = self._titles
        for name in self._differing():
            if name in self.saved:
                setattr(self.owner, name, self.saved[name])
            else:
                delattr(self.owner, name)

    def entry(self) -> tuple[Any, ...]:
        return self.owner, self.own, self.order, self.saved, self._titles


def _titles(owner: type) -> tuple[str, str]:
    """The names of a class, whatever its metaclass says."""
    own = vars(type)
    return own["__name__"].__get__(owner), own["__qualname__"].__get__(owner)


class SlotsRecord(_Compared):
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


class ArgumentsRecord(_Compared):
    """The arguments of an exception, which C keeps."""

    part = "slots"

    def __init__(self, path: str, live: BaseException) -> None:
        self.path = path
        self.live = live
        self.saved = live.args

    def changes(self) -> Iterable[str]:
        return () if self.live.args is self.saved else [f"{self.path}.args"]

    def restore(self) -> None:
        if self.live.args is not self.saved:
            self.live.args = self.saved

    def entry(self) -> tuple[Any, ...]:
        return self.live, [(vars(BaseException)["args"], self.saved)]


class ObjectRecord(_Compared):
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


class FunctionRecord(_Compared):
    """The code, defaults and names of a function."""

    part = "functions"
    _NAMES = (
        "__code__",
        "__defaults__",
        "__kwdefaults__",
        "__name__",
        "__qualname__",
        "__doc__",
        "__module__",
    )

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


class TensorRecord(_Compared):
    """The Python attributes of a tensor by names that code may read.

    Args:
        names: the names, to which more are added.
        compared: ids of tensors that the graph reads, to which more are added: their layout is compared with it.
    """

    part = "tensors"

    def __init__(self, path: str, live: torch.Tensor, names: set[str], compared: set[int]) -> None:
        self.path = path
        self.live = live
        self._compared = compared
        self._names = names
        self.saved: dict[str, Any] = dict(_C.attributes_of(live) or {})

    def _differing(self) -> list[str]:
        now = _C.attributes_of(self.live) or {}
        if not now and not self.saved:
            return []
        keys = (now.keys() | self.saved.keys()) & self._names
        return sorted(key for key in keys if now.get(key, MISSING) is not self.saved.get(key, MISSING))

    def changes(self) -> Iterable[str]:
        return [f"{self.path}.{name}" for name in self._differing()]

    def restore(self) -> None:
        for name in self._differing():
            if name in self.saved:
                vars(self.live)[name] = self.saved[name]
            else:
                del vars(self.live)[name]

    def entry(self) -> tuple[Any, ...]:
        attributes = {name: value for name, value in self.saved.items() if name in self._names}
        return self.live, attributes, id(self.live) not in self._compared


class FactsRecord:
    """What a tensor is in autograd, for code that names such attributes."""

    part = ""
    NAMES = frozenset({"grad", "grad_fn", "is_leaf", "_base", "_version"})

    def __init__(self, live: torch.Tensor, names: frozenset[str]) -> None:
        self.live = live
        self.saved = [(name, getattr(live, name)) for name in sorted(names)]

    def changes(self) -> Iterable[str]:
        return ()

    def restore(self) -> None:
        """`Escapes` takes back what a trace leaves there."""

    def entry(self) -> tuple[Any, ...]:
        return ()

    def holds(self) -> bool:
        return all(
            now is value or (name == "_version" and now == value)
            for name, value in self.saved
            for now in (getattr(self.live, name),)
        )


class BufferRecord:
    """The bytes of a numpy array, an `array.array`, a bytearray, a memoryview or an object of `ctypes`."""

    part = ""

    def __init__(self, path: str, live: Any) -> None:
        self.path = path
        self.live = live
        self.saved = content_of(live)

    def changes(self) -> Iterable[str]:
        return () if self.holds() else [self.path]

    def restore(self) -> None:
        if self.holds():
            return
        if isinstance(self.live, bytearray):
            self.live[:] = self.saved
        elif isinstance(self.live, memoryview):
            if self.live.c_contiguous and not self.live.readonly:
                self.live.cast("B")[:] = self.saved
        elif isinstance(self.live, array.array):
            self.live[:] = array.array(self.live.typecode, self.saved)
        elif has_bytes_of_ctypes(self.live):
            memoryview(self.live).cast("B")[:] = self.saved
        elif len(self.saved) == self.live.nbytes:
            self.live[...] = type(self.live)(self.live.shape, self.live.dtype, self.saved)

    def entry(self) -> tuple[Any, ...]:
        return ()

    def holds(self) -> bool:
        return content_of(self.live) == self.saved


class AnswerRecord(_Compared):
    """What a C function without arguments answers: a number or a text."""

    part = "answers"

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.saved = function()

    def changes(self) -> Iterable[str]:
        return () if self.function() == self.saved else [f"{self.function.__name__}()"]

    def restore(self) -> None:
        """What it tells of cannot be undone."""

    def entry(self) -> tuple[Any, ...]:
        return self.function, self.saved


class ListingRecord:
    """What `dir` lists of a value."""

    part = ""

    def __init__(self, live: Any, names: list[str]) -> None:
        self.live = live
        self.saved = names

    def changes(self) -> Iterable[str]:
        return () if self.holds() else ["dir()"]

    def restore(self) -> None:
        """The records of the value's dict and class undo it."""

    def entry(self) -> tuple[Any, ...]:
        return ()

    def holds(self) -> bool:
        return dir(self.live) == self.saved


def logger_records(logger: logging.Logger) -> Iterable[ScopeRecord]:
    """What decides which messages a logger lets through."""
    manager = ScopeRecord(vars(logger.manager))
    manager.saved = {name: value for name, value in manager.live.items() if name in ("disable", "_disable")}
    yield manager
    each: logging.Logger | None = logger
    while each is not None:
        record = ScopeRecord(vars(each))
        record.saved = {name: record.live[name] for name in ("level", "disabled", "parent")}
        yield record
        each = each.parent


def _is_torchs(module: str) -> bool:
    """Whether other threads patch what a module holds for a while, as `torch.export` patches `nn.Module.__call__`.

    What they have taken back meanwhile must stay so. Models do not write there.
    """
    return module.partition(".")[0] == "torch"


def _attributes(value: Any) -> Any:
    """The dict of an object's attributes; `MISSING` if there is none, or a function's is empty."""
    found = _C.attributes_of(value)
    return MISSING if found is None or (not found and isinstance(value, types.FunctionType)) else found


def slots_record(path: str, live: Any, slots: dict[str, Any]) -> SlotsRecord:
    """The record of attributes that `slots_of` gave."""
    return (LocalRecord if isinstance(live, threading.local) else SlotsRecord)(path, live, slots)
