"""Objects of extension classes that an argument holds besides its tensors, and that no model has read yet.

The result of a tokenizer also holds the tokenizer's own records, which are new objects in each call. If they were compared
by identity, each call would need another trace. So a trace gets *stand-ins* for them, and it serves any object of the
class. If the model uses a stand-in for anything but its class, the trace ends, and from then on objects of that class are
compared by identity.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from staticrt.native import _C

KIND = "unread"  # of a structure
_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "staticrt"})
_OF_ANY_OBJECT = frozenset(f"__{name}__" for name in (
    "class", "doc", "module", "new", "init", "del", "dict", "slots", "init_subclass", "subclasshook",
    "weakref", "getattribute",
))  # fmt: skip
_read: weakref.WeakSet[type] = weakref.WeakSet()


class Spec(Protocol):
    """The part of a `Structure` that is used here."""

    kind: Any
    context: Any
    children: tuple[Any, ...]


class Read(BaseException):
    """A model used a stand-in; no model code should catch it."""


class StandIn:
    """Base of the classes of all stand-ins."""

    __slots__ = ()


def context_of(value: Any) -> tuple[type, bool] | None:
    """(class, False) of an object that a stand-in may replace, (class, True) of a list of such objects of one class."""
    if type(value) is list:
        found = set(map(type, value))
        return (found.pop(), True) if len(found) == 1 and _may_stay_unread(value[0]) else None
    return (type(value), False) if _may_stay_unread(value) else None


def _may_stay_unread(value: Any) -> bool:
    kind = type(value)
    return (
        kind not in _read
        and kind.__base__ is object
        and kind.__module__.partition(".")[0] not in _LIBRARIES
        and not _C.attributes_of(value)
        and _is_of_extension(kind)
    )


def _is_of_extension(kind: type) -> bool:
    """Whether C code defines a class: it has methods, none of which is Python's."""
    members = vars(kind)
    return (
        any(isinstance(each, types.MethodDescriptorType) for each in members.values())
        and not any(isinstance(each, types.FunctionType) for each in members.values())
        and "__slots__" not in members
    )


def stand_in(context: tuple[type, bool]) -> Any:
    """A stand-in for a value with this `context_of`."""
    return _class_for(*context)()


def kinds(spec: Spec) -> Iterator[type]:
    """Classes whose objects have stand-ins in a structure."""
    if spec.kind == KIND:
        yield spec.context[0]
    for child in spec.children:
        yield from kinds(child)


def was_read(spec: Spec) -> bool:
    """Whether a model has used a stand-in of this structure."""
    return any(kind in _read for kind in kinds(spec))


def compare(spec: Spec) -> None:
    """From now on compare by identity the objects that have stand-ins in a structure."""
    _read.update(kinds(spec))


def was_refused(spec: Spec, message: str) -> bool:
    """Whether a TypeError may mean that C code refuses a stand-in of this structure, which is then not used again."""
    found = [kind for kind in kinds(spec) if kind.__name__ in message or "list" in message]
    _read.update(found)
    return bool(found)


@functools.lru_cache(maxsize=64)
def _class_for(kind: type, is_list: bool) -> type:
    like = list if is_list else kind

    def used(*_args: Any, **_kwargs: Any) -> NoReturn:
        _read.add(kind)
        raise Read

    def attribute(_self: Any, name: str) -> Any:
        return like if name == "__class__" else used()

    def body(namespace: dict[str, Any]) -> None:
        special = {
            name for name in dir(like) if name.startswith("__") and callable(getattr(like, name, None))
        }
        namespace |= {"__slots__": (), "__getattribute__": attribute}
        namespace |= dict.fromkeys((special | {"__bool__"}) - _OF_ANY_OBJECT, used)

    return types.new_class(like.__name__, (StandIn,), exec_body=body)
