"""Python state a capture depends on: module attributes, hooks, containers, closures, globals.

`Snapshot` walks it once. During capture it tells whether the model changed any of it (then the capture is not
pure) and puts it back; afterwards the same record is the guard: the capture holds while nothing differs.
"""

from __future__ import annotations

import array
import gc
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from staticrt.frontend.state_values import (
    cell_content,
    content_of,
    dict_of,
    different_keys,
    members_of,
    same_dict,
    same_list,
    same_slots,
    slots_of,
)
from staticrt.native import _C

_LEAF_TYPES: tuple[type, ...] = (
    torch.Tensor,
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    torch.dtype,
    torch.device,
    torch.Generator,
    torch.Size,
    torch._ops.OperatorBase,  # with caches of their own
    torch._ops.OpOverloadPacket,
    torch._library.custom_ops.CustomOpDef,  # the same
)
_MAX_CONTAINERS = 200_000
_MISSING = object()


class Snapshot:
    """The contents, by identity, of every mutable container reachable from some roots.

    Args:
        roots: (name, object) pairs; modules, functions (their closures and defaults), containers, plain objects.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]] = ()) -> None:
        self._seen: set[int] = set()
        self._dicts: list[tuple[str, dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[str, Any, list[Any]]] = []
        self._sets: list[tuple[str, set[Any], set[Any]]] = []
        self._cells: list[tuple[str, types.CellType, Any]] = []
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._owners: dict[int, type] = {}  # id of a class's dict -> the class
        self._slots: list[tuple[str, Any, dict[str, Any]]] = []  # objects whose attributes lie in no dict
        self._buffers: list[tuple[str, Any, bytes]] = []
        self.read_names: set[str] = set()  # names in the code that ran
        self._alive: list[Any] = []
        self._arguments: dict[str, int] = {}  # path of a leaf -> its index
        self.complete = True
        for name, root in roots:
            self.add(name, root)

    def add(self, name: str, root: Any) -> None:
        """Walk one more root."""
        queue: deque[tuple[str, Any]] = deque([(name, root)])
        while queue:
            path, value = queue.popleft()
            if isinstance(value, types.MethodType):
                queue.append((path, value.__self__))
                value = value.__func__
            if isinstance(value, types.FunctionType):
                if id(value) not in self._seen:
                    self._remember(value)
                    queue.extend(self._function(path, value))
                continue
            # Modules come by import, also while others load theirs: what has been imported is nobody's state.
            if isinstance(value, _LEAF_TYPES) or id(value) in self._seen or value is sys.modules:
                continue
            if len(self._seen) > _MAX_CONTAINERS:
                self.complete = False
                return
            self._remember(value)
            queue.extend(self._container(path, value))

    def add_arguments(self, leaves: Sequence[Any]) -> None:
        """Walk the arguments of a call that are neither tensors nor values: objects told by their identity."""
        for index, leaf in enumerate(leaves):
            if not _is_leaf(leaf):
                self._arguments[f"argument {index}"] = index
                self.add(f"argument {index}", leaf)

    def changed_arguments(self, paths: Sequence[str]) -> list[int]:
        """Indices of the leaves given to `add_arguments` to which some of these paths (see `changes`) lead."""
        roots = {re.match(r"argument \d+|", path).group() for path in paths}  # type: ignore[union-attr]
        return [index for name, index in self._arguments.items() if name in roots]

    def _remember(self, value: Any) -> None:
        self._seen.add(id(value))
        self._alive.append(value)

    def _container(self, path: str, value: Any) -> list[tuple[str, Any]]:
        if isinstance(value, dict):
            saved = dict(dict.items(value))  # not through methods that a subclass overrides
            self._dicts.append((path, value, saved))
            return [(f"{path}[{key!r}]", x) for key, x in saved.items() if not _is_leaf(x)]
        if isinstance(value, (list, deque)):
            self._lists.append((path, value, list(value)))
            return [(f"{path}[{i}]", item) for i, item in enumerate(value) if not _is_leaf(item)]
        if isinstance(value, tuple):
            return [(f"{path}[{i}]", item) for i, item in enumerate(value) if not _is_leaf(item)]
        if isinstance(value, set):
            self._sets.append((path, value, set(value)))
            return []
        if isinstance(value, partial):
            return [(path, value.func), (path, value.args), (path, value.keywords)]
        if isinstance(value, types.MappingProxyType):
            return [(path, item) for item in gc.get_referents(value)]
        if isinstance(value, weakref.ref):
            return [(path, value())]
        room = type(value).__module__.split(".")[0]
        if isinstance(value, (bytearray, array.array)) or (room == "numpy" and hasattr(value, "tobytes")):
            self._buffers.append((path, value, content_of(value)))
            return []
        own = isinstance(value, threading.local)
        if room in ("logging", "threading", "_thread", "concurrent") and not own:
            return []
        if room == "staticrt" and not isinstance(value, torch.nn.Module):
            return []
        found = []
        if (slots := slots_of(value)) is not None:
            self._slots.append((path, value, slots))
            found = [(f"{path}.{key}", item) for key, item in slots.items() if not _is_leaf(item)]
            if own:
                return found
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return found
        self._seen.add(id(attributes))
        self._dicts.append((path, attributes, dict(attributes)))
        if isinstance(value, torch.nn.Module):
            self._forward(type(value))
        for key, item in attributes.items():
            if _is_leaf(item):
                continue
            if isinstance(value, torch.nn.Module) and key in ("_modules", "_parameters", "_buffers"):
                if id(item) not in self._seen:  # keep paths readable: "encoder.layers.0"
                    self._remember(item)
                    self._dicts.append((path, item, dict(item)))
                found += [(f"{path}.{name}", child) for name, child in item.items() if child is not None]
            else:
                found.append((f"{path}.{key}", item))
        return found

    def _forward(self, owner: type) -> None:
        """What a module's class calls."""
        found = next((each for each in owner.__mro__ if "forward" in vars(each)), None)
        if found is not None and found is not torch.nn.Module:
            self.add_global(dict_of(found), "forward", found)

    def _function(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self._cells.append((f"{path}:{name}", cell, content))
            found.append((f"{path}:{name}", content))
        found += [(f"{path}(...)", value) for value in function.__defaults__ or () if not _is_leaf(value)]
        for own in (function.__kwdefaults__, function.__dict__):
            if own:
                found.append((path, own))
        return found

    def knows(self, address: int) -> bool:
        """Whether an object (by id) was there when the snapshot was taken."""
        return address in self._seen

    def add_global(self, scope: dict[str, Any], name: str, owner: type | None = None) -> None:
        """Remember what a name in a scope means (nothing, maybe), and what that holds.

        Args:
            scope: globals, or the dict of the class `owner`.
        """
        key = (id(scope), name)
        if key not in self._globals:
            if owner is not None:
                self._owners[id(scope)] = owner
            value = scope.get(name, _MISSING)
            self._globals[key] = (scope, name, value)
            if not _is_leaf(value):
                self.add(name, value)

    def changes(self) -> list[str]:
        """Paths of what differs now, each with what happened."""
        found = []
        for path, live, saved in self._dicts:
            if not same_dict(live, saved):
                found += [f"{path}.{key}" for key in different_keys(live, saved)]
        found += [path for path, live_list, saved_list in self._lists if not same_list(live_list, saved_list)]
        found += [path for path, live, saved in self._sets if live != saved]
        found += [path for path, live, saved in self._slots if not same_slots(live, saved)]
        found += [path for path, cell, saved in self._cells if cell_content(cell) is not saved]
        found += [
            name for scope, name, saved in self._globals.values() if scope.get(name, _MISSING) is not saved
        ]
        return found

    def restore(self) -> None:
        """Put everything back as it was."""
        for _path, live, saved in self._dicts:
            if not same_dict(live, saved):
                kind = OrderedDict if isinstance(live, OrderedDict) else dict
                kind.clear(live)
                for key, item in saved.items():
                    kind.__setitem__(live, key, item)
        for _path, live_list, saved_list in self._lists:
            if not same_list(live_list, saved_list):
                live_list.clear()
                live_list.extend(saved_list)
        for _path, live_set, saved_set in self._sets:
            if live_set != saved_set:
                live_set.clear()
                live_set.update(saved_set)
        for _path, cell, saved in self._cells:
            if cell_content(cell) is not saved:
                cell.cell_contents = saved
        for _path, live_object, attributes in self._slots:
            for name, value in attributes.items():
                if getattr(live_object, name, None) is not value:
                    object.__setattr__(live_object, name, value)
        for scope, name, saved in self._globals.values():
            owner = self._owners.get(id(scope))
            if scope.get(name, _MISSING) is saved:
                continue
            if owner is not None:
                delattr(owner, name) if saved is _MISSING else setattr(owner, name, saved)
            elif saved is _MISSING:
                del scope[name]
            else:
                scope[name] = saved

    def guard(self) -> StateGuard:
        """A quick check that nothing differs."""
        return StateGuard(self)


def _is_leaf(value: Any) -> bool:
    """Whether nothing that could change is reached through a value."""
    return isinstance(value, _LEAF_TYPES) and not isinstance(value, (types.FunctionType, types.MethodType))


def global_hooks() -> list[tuple[str, dict[int, Any]]]:
    """Torch's tables of hooks that every module calls, with names, as roots of a snapshot."""
    module: Any = torch.nn.modules.module
    names = (f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
    return [(name, getattr(module, name)) for name in names]


def has_global_hooks() -> bool:
    """Whether any of those tables holds a hook."""
    module: Any = torch.nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )


class StateGuard:
    """Whether a snapshot still holds. The seam for a check in C++: only `holds()` runs on each call."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot  # keeps every compared object alive, so that ids stay theirs
        self._sized = [live for _p, live, _s in (*snapshot._dicts, *snapshot._lists, *snapshot._sets)]
        self._lengths = [len(live) for live in self._sized]
        self._views: list[Callable[[], Iterable[Any]]] = [
            live.values if type(live) is dict else partial(dict.values, live)
            for _p, live, _s in snapshot._dicts
            if live
        ]
        self._views += [live.__iter__ for _p, live, _s in snapshot._lists if live]
        self._ids = [id(item) for view in self._views for item in view()]
        self._sets = [(live, saved) for _p, live, saved in snapshot._sets]
        self._cells = [(cell, saved) for _p, cell, saved in snapshot._cells]
        self._globals = list(snapshot._globals.values())
        self._slots = [(live, saved) for _p, live, saved in snapshot._slots]
        self._native: _C.StateGuard | None = None
        self._buffers = [
            (live, saved)
            for path, live, saved in snapshot._buffers
            if path.endswith("]") or path.rsplit(".", 1)[-1].split(":")[-1] in snapshot.read_names
        ]

    def holds(self) -> bool:
        """True while nothing that the capture read has changed."""
        return (self._native is not None and self._native.holds()) or self._holds()

    def _holds(self) -> bool:
        if [*map(len, self._sized)] != self._lengths:
            return False
        if [*map(id, chain.from_iterable(view() for view in self._views))] != self._ids:
            return False
        return (
            all(live == saved for live, saved in self._sets)
            and all(cell_content(cell) is saved for cell, saved in self._cells)
            and all(scope.get(name, _MISSING) is saved for scope, name, saved in self._globals)
            and all(same_slots(live, saved) for live, saved in self._slots)
            and all(content_of(live) == saved for live, saved in self._buffers)
        )

    def native(self) -> _C.StateGuard | None:
        """The same check in C++, or None if the snapshot holds what only Python compares, or no longer holds."""
        if self._native is not None:
            return self._native
        lists = [live for _path, live, _saved in self._snapshot._lists]
        local = any(isinstance(live, threading.local) for live, _saved in self._slots)
        if local or self._buffers or any(type(live) is not list for live in lists):
            return None
        found = _C.StateGuard(
            [live for _path, live, _saved in self._snapshot._dicts],
            lists,
            [live for live, _saved in self._sets],
            [cell for cell, _saved in self._cells],
            [(scope, name) for scope, name, _saved in self._globals],
            [(live, member) for live, _saved in self._slots for member in members_of(type(live))],
        )
        # It remembers what it finds, so that has to be what the capture found.
        if self._holds():
            self._native = found
        return self._native

    def changes(self) -> list[str]:
        """What changed, for messages."""
        return self._snapshot.changes()
