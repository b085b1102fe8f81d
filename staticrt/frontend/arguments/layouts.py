"""The contents of an object of any class, and how to make a copy, where pytree and `__dict__` do not suffice.

An object holds what its builtin base class does (items, keys), its slots and its attributes. Nothing here calls a method
that a class overrides.
"""

from __future__ import annotations

import dis
import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

# Classes that a Python class may extend; containers of tensors in arguments, and in results.
_MUTABLE = (object, dict, OrderedDict, defaultdict, list, deque, set)
_FIXED = (tuple, frozenset)
_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_ITERATORS: tuple[Any, ...] = (
    map,
    zip,
    filter,
    enumerate,
    reversed,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)
_KEYS = (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)
_HEAP_TYPE = 1 << 9


class Identical:
    """A wrapper that equals only itself and needs no hash."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identical) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


class Layout(NamedTuple):
    """How an object holds its children.

    Args:
        base: the builtin class that holds its items, or whose only object it can be made as.
        size: children that are items.
        keys: a mapping's keys; None: its keys are the first half of the items.
        slots, names: of the children that follow.
        extra: what else its base needs.
    """

    base: type
    size: int
    keys: tuple[Any, ...] | None = None
    slots: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    extra: Any = None


def base_of(kind: type) -> type | None:
    """The builtin base class that holds the contents of a class's objects besides attributes; None if there is none."""
    base: Any = kind
    while base not in _MUTABLE and base not in _FIXED:
        if not base.__flags__ & _HEAP_TYPE:
            return None
        base = base.__base__
    known = len(_members(kind)) + bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__)
    return base if kind.__basicsize__ <= base.__basicsize__ + 8 * known else None


def apart(value: Any) -> tuple[list[Any], Layout] | None:
    """The contents of an object; None if its class hides some of them."""
    kind = type(value)
    base: Any = base_of(kind)
    if base is None or (base is object and not (kind.__dictoffset__ or _members(kind))):
        return None
    items: list[Any] = []
    keys: tuple[Any, ...] | None = None
    extra: Any = None
    if issubclass(base, dict):
        found = list(base.items(value))
        items = [item for _key, item in found]
        if all(_is_constant(key) for key, _item in found):
            keys = tuple(key for key, _item in found)
            extra = tuple(map(type, keys))  # 1 and True are equal keys
        else:
            items = [key for key, _item in found] + items
        if base is defaultdict:
            items.append(value.default_factory)
    elif base is not object:
        items = list(base.__iter__(value))
        extra = value.maxlen if base is deque else None
    return _with_attributes(value, items, Layout(base, len(items), keys, extra=extra))


def _with_attributes(value: Any, items: list[Any], layout: Layout) -> tuple[list[Any], Layout]:
    slots: dict[str, Any] = {}
    for name, member in _members(type(value)).items():
        try:
            slots[name] = member.__get__(value)
        except AttributeError:
            continue
    attributes = getattr(value, "__dict__", None) or {}
    children = [*items, *slots.values(), *attributes.values()]
    return children, layout._replace(slots=tuple(slots), names=tuple(attributes))


@functools.lru_cache(maxsize=512)
def _members_of(kind: type) -> dict[str, types.MemberDescriptorType]:
    """The descriptors of the slots of a Python class's objects."""
    return {
        name: member
        for each in reversed(kind.__mro__)
        if each.__flags__ & _HEAP_TYPE and each.__module__ != "builtins"
        for name, member in vars(each).items()
        if isinstance(member, types.MemberDescriptorType)
        and each.__module__ not in ("functools", "collections")
    }


def _is_constant(key: Any) -> bool:
    return type(key) in _KEYS or isinstance(key, type) or (type(key) is tuple and all(map(_is_constant, key)))


def part_of_result(value: Any) -> tuple[list[Any], Layout] | None:
    """As `apart`, also for objects that only results hold: functions, methods, slices, iterators."""
    kind = type(value)
    if isinstance(value, functools.partial):
        return _with_attributes(value, [value.func, value.args, value.keywords], Layout(functools.partial, 3))
    if kind is types.FunctionType:
        return _function(value)
    if kind is types.MethodType:
        return [value.__func__, value.__self__], Layout(types.MethodType, 2)
    if kind is types.BuiltinMethodType:
        return [value.__self__], Layout(types.BuiltinMethodType, 1, extra=value.__name__)
    if kind is slice:
        return [value.start, value.stop, value.step], Layout(slice, 3)
    if kind in _VIEWS:
        (owner,) = gc.get_referents(value)  # itself: it may be an argument, or the model's own
        return ([owner], Layout(kind, 1)) if isinstance(owner, dict) else None
    if kind in _ITERATORS:
        function, *rest = value.__reduce__()
        return rest, Layout(enumerate, len(rest), extra=Identical(function))
    if isinstance(value, BaseException):
        return _exception(value)
    return apart(value)


def _function(value: types.FunctionType) -> tuple[list[Any], Layout] | None:
    """A function made by another function: its code and its closure."""
    code = value.__code__
    shared = [i for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF")]
    if any(instruction.argval in code.co_freevars for instruction in shared):
        return None  # other functions see what it writes
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:
        return None
    named = value.__kwdefaults__ or {}
    items = [*cells, *named.values(), *(value.__defaults__ or ())]
    extra = (Identical(code), Identical(value.__globals__), value.__name__, value.__qualname__, tuple(named))
    return _with_attributes(value, items, Layout(types.FunctionType, len(items), extra=extra))


def _exception(value: BaseException) -> tuple[list[Any], Layout] | None:
    kind: Any = type(value)
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__
    if (
        kind.__basicsize__ != BaseException.__basicsize__
        or value.__traceback__
        or value.__cause__
        or value.__context__
    ):
        return None
    return _with_attributes(value, list(value.args), Layout(BaseException, len(value.args)))


def _members(kind: Any) -> dict[str, types.MemberDescriptorType]:
    return _members_of(kind)


def begin(kind: type, layout: Layout) -> Any:
    """An empty object; None for objects that need their contents when they are made."""
    base: Any = layout.base
    if base is types.FunctionType:
        code, scope, name, qualname, _named = layout.extra
        cells = tuple(types.CellType() for _ in code.value.co_freevars)
        made: Any = types.FunctionType(code.value, scope.value, name, None, cells)
        made.__qualname__ = qualname
        return made
    if base not in _MUTABLE:
        return None
    made = base.__new__(kind)
    if base is deque:
        deque.__init__(made, (), layout.extra)
    return made


def finish(kind: type, layout: Layout, made: Any, values: Sequence[Any]) -> Any:
    """Fill an object that `begin` made; returns the object."""
    base: Any = layout.base
    items = list(values[: layout.size])
    rest = values[layout.size :]
    if made is None:
        made = _of_items(kind, layout, items)
    elif base is types.FunctionType:
        named = layout.extra[-1]
        cells = made.__closure__ or ()
        for cell, item in zip(cells, items, strict=False):
            cell.cell_contents = item
        made.__kwdefaults__ = dict(zip(named, items[len(cells) :], strict=False)) or None
        made.__defaults__ = tuple(items[len(cells) + len(named) :]) or None
    elif base in (list, deque):
        base.extend(made, items)
    elif base is set:
        set.update(made, items)
    elif base is not object:
        if base is defaultdict:
            made.default_factory = items.pop()
        keys: Sequence[Any] = items[: len(items) // 2] if layout.keys is None else layout.keys
        for key, item in zip(keys, items[-len(keys) :] if keys else (), strict=True):
            base.__setitem__(made, key, item)
    for name, value in zip(layout.slots, rest, strict=False):
        _members(kind)[name].__set__(made, value)
    if layout.names:
        made.__dict__.update(zip(layout.names, rest[len(layout.slots) :], strict=True))
    return made


def _of_items(kind: Any, layout: Layout, items: list[Any]) -> Any:
    base: Any = layout.base
    if base in _FIXED:
        return base.__new__(kind, items)
    if base is functools.partial:
        return functools.partial.__new__(kind, items[0], *items[1], **items[2])
    if base is types.BuiltinMethodType:
        return getattr(items[0], layout.extra)
    if base in _VIEWS:
        return getattr(dict, _VIEWS[base])(items[0])
    if base is enumerate:  # of any iterator
        made = layout.extra.value(*items[0])
        if len(items) > 1:
            made.__setstate__(items[1])
        return made
    if base is BaseException:
        made = BaseException.__new__(kind, *items)
        made.args = tuple(items)
        return made
    return base(*items)


def replace(container: Any, like: Any) -> None:
    """Replace the contents of a mutable object by those of another one of its class."""
    found = apart(like)
    assert found is not None
    children, layout = found
    base: Any = layout.base
    if base is not object:
        base.clear(container)
    for member in _members(type(container)).values():
        if hasattr(member, "__delete__"):
            try:
                member.__delete__(container)
            except AttributeError:
                continue
    if getattr(container, "__dict__", None):
        container.__dict__.clear()
    finish(type(container), layout, container, children)
