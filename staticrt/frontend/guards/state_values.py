"""Contents of one piece of Python state, and their comparison: dicts, lists, slots, cells, buffers."""

from __future__ import annotations

import gc
import threading
import types
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch

from staticrt.native import _C


def dict_of(owner: type) -> dict[str, Any]:
    """The dict behind a class's `__dict__`, which is a read-only view of it."""
    found: dict[str, Any] = gc.get_referents(owner.__dict__)[0]
    return found


def slots_of(value: Any) -> dict[str, Any] | None:
    """Attributes in slots, or in the dict that a `threading.local` has for this thread; None if there are none."""
    if isinstance(value, threading.local):
        return dict(vars(value))
    if isinstance(value, torch.nn.Module) or not any(
        "__slots__" in vars(each) for each in type(value).__mro__
    ):
        return None
    names = sorted({member.__name__ for member in members_of(type(value))})
    return {name: getattr(value, name) for name in names if hasattr(value, name)} if names else None


def members_of(kind: type) -> list[types.MemberDescriptorType]:
    """The descriptors of the slots of a class's objects."""
    return [
        member
        for each in kind.__mro__
        for member in vars(each).values()
        if isinstance(member, types.MemberDescriptorType) and each.__module__ != "builtins"
    ]


def same_slots(value: Any, saved: dict[str, Any]) -> bool:
    now = slots_of(value) or {}
    return now.keys() == saved.keys() and all(now[name] is saved[name] for name in saved)


def has_bytes_of_ctypes(value: Any) -> bool:
    """Whether a value is a number, array or structure of `ctypes`."""
    return any(each.__module__ == "_ctypes" and each.__name__ == "_CData" for each in type(value).__mro__)


def is_numpy_array(value: Any) -> bool:
    """Whether a value is an array or a number of numpy, also of a class derived from these."""
    return any(each.__module__ == "numpy" and hasattr(each, "tobytes") for each in type(value).__mro__)


def content_of(value: Any) -> bytes:
    """The bytes of a numpy array, an `array.array`, a bytearray, a memoryview or an object of `ctypes`."""
    return value.tobytes() if hasattr(value, "tobytes") else bytes(value)


def layout_of(value: Any) -> tuple[Any, ...]:
    """What a numpy array says of its bytes, which may change in place; empty for others."""
    if not hasattr(value, "dtype"):
        return ()
    return value.dtype, value.shape, value.strides, value.flags.writeable


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _C.MISSING


def items_of(live: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """The items, without calling methods that a subclass overrides; an OrderedDict has its own order."""
    return (OrderedDict if isinstance(live, OrderedDict) else dict).items(live)


def same_dict(live: dict[Any, Any], saved: dict[Any, Any]) -> bool:
    return len(live) == len(saved) and all(
        a is b and x is y for (a, x), (b, y) in zip(items_of(live), saved.items(), strict=True)
    )


def same_list(live: Any, saved: list[Any]) -> bool:
    return len(live) == len(saved) and all(a is b for a, b in zip(live, saved, strict=True))


def _is_fake_type(key: Any) -> bool:
    return isinstance(key, type) and key.__name__ == "FakeTensor" and issubclass(key, torch.Tensor)


def different_keys(live: dict[Any, Any], saved: dict[Any, Any]) -> list[str]:
    missing = object()
    # Entries of a cache by type (einops, by tensor types) for a type that only traces have are not a call's state.
    keys = [*saved, *(key for key in live if key not in saved and not _is_fake_type(key))]
    return [
        type(key).__name__ if isinstance(key, torch.Tensor) else str(key)  # not all its numbers
        for key in keys
        if not stays(dict.get(live, key, missing), saved.get(key, missing))
    ]


def stays(now: Any, before: Any) -> bool:
    """Whether a value is unchanged: the same object, or a new list of the same objects.

    Modules that set up what is set up already (`self.anchors = [a.to(x) for a in self.anchors]`) make such lists.
    """
    return now is before or (type(now) is type(before) is list and same_list(now, before))
