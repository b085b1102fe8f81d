"""What a model reaches by weak references alone: a trace that kept it alive would run as if it still existed."""

from __future__ import annotations

import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

# What Python's library keeps caches for: they live as long as their module.
_LASTING = (type, types.ModuleType, types.FunctionType)


class WeakReferences:
    """The weak references among what a snapshot walks."""

    def __init__(self) -> None:
        self._held: list[tuple[str, weakref.ref[Any]]] = []  # to what a guard would hold
        self._weakly: set[int] = set()  # ids of what a guard refers to weakly
        self._followed: list[str] = []  # paths of those to what may go

    def follow(self, path: str, reference: weakref.ref[Any]) -> list[tuple[str, Any]]:
        """What a walk goes on with behind a weak reference."""
        value = reference()
        if value is None:
            return []
        if not isinstance(value, _LASTING):
            if not isinstance(value, torch.Tensor):
                self._followed.append(path)
            if not _has_only_a_dict(value):
                self._held.append((path, reference))
                return []
            self._weakly.add(id(value))
        return [(path, value)]

    @property
    def lead_to_any(self) -> bool:
        """Whether `leads_to` says so of any object."""
        return bool(self._weakly)

    def leads_to(self, value: Any) -> bool:
        """Whether a walk met an object behind a weak reference: its guard must not keep it alive."""
        return id(value) in self._weakly

    def are_read(self, names: set[str]) -> bool:
        """Whether code may read one by these names. What it refers to may go; tensors stay, which are inputs of the graph."""
        return any(is_named(path, names) for path in self._followed)

    def unkept(self, is_kept: Callable[[int], bool], names: set[str]) -> str | None:
        """The path of one that code may read by these names, whose referent no guard can look at without keeping it."""
        for path, reference in self._held:
            value = reference()
            if value is not None and not is_kept(id(value)) and is_named(path, names):
                return path
        return None


def is_named(path: str, names: set[str]) -> bool:
    """Whether the attribute that a path ends with, if it does, has one of these names."""
    attribute = re.search(r"\.(\w+)$", path)
    return attribute is None or attribute[1] in names


def _has_only_a_dict(value: Any) -> bool:
    """Whether guards look at an object's class and dict alone, which do not keep it alive."""
    kinds = type(value).__mro__
    return (
        hasattr(value, "__dict__")
        and bool(type(value).__weakrefoffset__)
        and all("__slots__" not in vars(each) for each in kinds)
        and not any(each.__module__ == "builtins" and each is not object for each in kinds)
        and not isinstance(value, (torch.Tensor, threading.local))
    )
