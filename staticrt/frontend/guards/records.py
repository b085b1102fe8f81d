"""Records of one piece of Python state each, as it was when a trace first met it: compare it, and restore it.

Each record becomes one part of a `_C.StateGuard`, which compares the same in every later call. This file has containers,
cells and globals; `object_records` has classes, objects and functions, `value_records` contents of tensors and buffers.
"""

from __future__ import annotations

import logging
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from staticrt.frontend.guards.state_values import cell_content, different_keys, items_of, same_dict, same_list
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
        """The arguments of the guard's part."""

    def holds(self) -> bool:
        """Whether nothing differs, where only Python compares it."""


class Compared:
    """A record that C++ compares."""

    def holds(self) -> bool:
        raise AssertionError("C++ compares it")


class ComparedInPython:
    """A record that only Python compares, as a whole."""

    part = ""
    path = ""

    def changes(self) -> Iterable[str]:
        return () if self.holds() else [self.path]

    def entry(self) -> tuple[Any, ...]:
        raise AssertionError("C++ does not compare it")

    def holds(self) -> bool:
        raise NotImplementedError


class DictRecord(Compared):
    """All keys and values of a dict, in order."""

    part = "dicts"

    def __init__(self, path: str, live: dict[Any, Any], is_attributes: bool = False) -> None:
        self.path = path
        self.live = live
        self.is_attributes = is_attributes
        self.saved = dict(items_of(live))
        self.is_ordered = isinstance(live, OrderedDict)  # and tells of the order
        # Keys of containers that nothing else is known to hold, with their items, and of tensors that runs replace.
        self.replaceable: dict[str, tuple[Any, ...]] = {}
        # Keys that code does not read: a guard must not keep their values alive.
        self.unkept: set[str] = set()

    def changes(self) -> Iterable[str]:
        if same_dict(self.live, self.saved):
            return ()
        found = [f"{self.path}.{key}" for key in different_keys(self.live, self.saved)]
        if not found and [key for key, _item in items_of(self.live) if key in self.saved] != [*self.saved]:
            return [f"the order of {self.path}"]
        return found

    def settle_sizes(self) -> None:
        """Where the model stored a size over an equal int, store the int again, and guard that the size equals it."""
        for key, number in self.saved.items():
            size = self.live.get(key)
            if type(number) is int and isinstance(size, torch.SymInt) and size.node.hint == number:
                int(size)  # adds the guard
                self.live[key] = number

    def restore(self) -> None:
        if not same_dict(self.live, self.saved):
            kind: Any = OrderedDict if isinstance(self.live, OrderedDict) else dict
            kind.clear(self.live)
            for key, item in self.saved.items():
                kind.__setitem__(self.live, key, item)

    def entry(self) -> tuple[Any, ...]:
        saved = self.saved
        if self.unkept:
            saved = {key: None if key in self.unkept else value for key, value in saved.items()}
        return self.live, saved, self.is_attributes, self.replaceable


class ListRecord(Compared):
    """The items of a list, deque or set, in order."""

    part = "lists"

    def __init__(self, path: str, live: list[Any] | deque[Any] | set[Any]) -> None:
        self.path = path
        self.live: Any = live
        self.saved = list(live)

    @property
    def is_bounded(self) -> bool:
        """Whether adding an item drops another one, which Dynamo does not model for existing deques."""
        return getattr(self.live, "maxlen", None) is not None

    def changes(self) -> Iterable[str]:
        return () if same_list(self.live, self.saved) else [self.path]

    def restore(self) -> None:
        if not same_list(self.live, self.saved):
            self.live.clear()
            (self.live.update if isinstance(self.live, set) else self.live.extend)(self.saved)

    def entry(self) -> tuple[Any, ...]:
        return self.live, self.saved


def holds_identities(value: Any) -> bool:
    """Whether a value is a set of classes that are compared by identity."""
    return type(value) is set and all(
        isinstance(each, type) and type(each).__hash__ is type.__hash__ and type(each).__eq__ is type.__eq__
        for each in value
    )


class CellRecord(Compared):
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


class ScopeRecord(Compared):
    """The values of some names in the dict of a module; a name may have none."""

    part = "scopes"

    def __init__(self, live: dict[str, Any], saved: Iterable[tuple[str, Any]] = ()) -> None:
        self.live = live
        self.saved = dict(saved)
        self.asked: set[str] = set()  # sets of which code only asks what is in them

    def changes(self) -> Iterable[str]:
        return [name for name, value in self.saved.items() if self.live.get(name, MISSING) is not value]

    def restore(self) -> None:
        for name in () if is_torchs(str(self.live.get("__name__"))) else self.changes():
            if self.saved[name] is MISSING:
                del self.live[name]
            else:
                self.live[name] = self.saved[name]

    def entry(self) -> tuple[Any, ...]:
        return self.live, self.saved


class LoggerRecord(ScopeRecord):
    """What of a logger, or of the manager of all loggers, decides which messages are let through."""

    def __init__(self, manager: logging.Manager, owner: logging.Logger | logging.Manager) -> None:
        super().__init__(vars(owner))
        self._manager = manager
        names = ("level", "disabled", "parent") if owner is not manager else ("disable", "_disable")
        self.saved = {name: self.live[name] for name in names if name in self.live}

    def changes(self) -> Iterable[str]:
        return [f"{name!r} of a logger" for name in super().changes()]

    def restore(self) -> None:
        for name, value in self.saved.items():
            if self.live[name] is not value:
                self.live[name] = value
                self._manager._clear_cache()  # type: ignore[attr-defined]


def logger_records(logger: logging.Logger) -> Iterable[LoggerRecord]:
    """Of a logger, those that it hands messages on to, and their manager."""
    yield LoggerRecord(logger.manager, logger.manager)
    each: logging.Logger | None = logger
    while each is not None:
        yield LoggerRecord(logger.manager, each)
        each = each.parent


def is_torchs(module: str) -> bool:
    """Whether other threads temporarily patch a module, as `torch.export` patches `nn.Module.__call__`.

    Restoring must not undo their changes. Models do not write there.
    """
    return module.partition(".")[0] == "torch"
