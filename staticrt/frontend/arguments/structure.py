"""Flat leaves and structure of arguments and results.

Like a pytree, whose registry it uses. It also flattens plain objects that hold tensors (caches, unregistered dataclasses),
keeps shared containers shared, and finds the caller's containers that a model changed.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt import tuning
from staticrt.frontend.arguments import unread
from staticrt.frontend.arguments.layouts import Layout, apart, begin, finish, part_of_result, replace
from staticrt.frontend.reasons import CannotTrace

_PLAIN = (
    torch.Tensor,
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    type,
    torch.dtype,
    torch.device,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
)
# A result may hold these only if they existed before the call, because each eager call makes new ones.
_NOT_REMADE = (torch.nn.Module, types.ModuleType, type)
_OPAQUE = (types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, torch.nn.Module)
# Types of plain objects that have held tensors: flattened even if empty, so that an empty cache has the same structure.
_HOLDERS: weakref.WeakSet[type] = weakref.WeakSet()


class Structure:
    """One node of a structure. Equal structures take equal leaves.

    Args:
        kind: None for a leaf, "ref" for a container met before, `unread.KIND`, else the container's type.
        context: what the container's type needs besides its children.
        children: structures of the children.
    """

    __slots__ = ("_hash", "children", "context", "kind")

    def __init__(self, kind: Any, context: Any, children: tuple[Structure, ...]) -> None:
        self.kind = kind
        self.context = context
        self.children = children
        self._hash: int = hash((kind, len(children), *(child._hash for child in children)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Structure)
            and self._hash == other._hash
            and self.kind == other.kind
            and bool(self.context == other.context)
            and (self.kind is not dict or [*map(type, self.context)] == [*map(type, other.context)])
            and self.children == other.children
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_tuple(self) -> bool:
        """A tuple, a named tuple, a torch.Size: immutable, so equal ones are interchangeable."""
        return isinstance(self.kind, type) and issubclass(self.kind, tuple) and self.context is None

    @property
    def is_object(self) -> bool:
        """A plain object, by its attributes."""
        return isinstance(self.context, _Attributes)

    def kinds(self) -> Iterator[type]:
        """The types of the containers."""
        if isinstance(self.kind, type):
            yield self.kind
        for child in self.children:
            yield from child.kinds()

    def rebuild(self, values: Sequence[Any]) -> Any:
        """A container of this node's type from its children's values; not for lists, tuples, dicts, references."""
        if isinstance(self.context, _Attributes):
            made = self.kind.__new__(self.kind)
            made.__dict__.update(zip(self.context, values, strict=True))
            return made
        if isinstance(self.context, Layout):
            return finish(self.kind, self.context, begin(self.kind, self.context), values)
        if self.kind is torch.Size:
            return torch.Size(values)
        if self.context is None:  # a namedtuple
            return self.kind(*values)
        return pytree.SUPPORTED_NODES[self.kind].unflatten_fn(values, self.context.value)

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        name = self.kind if isinstance(self.kind, str) else self.kind.__name__
        return f"{name}({', '.join(map(repr, self.children))})"


LEAF = Structure(None, None, ())


class Flattener:
    """Takes values apart. One instance per call, so that it finds shared containers.

    Args:
        known: id of a container -> its number among the caller's containers; such a container becomes a reference.
        opaque: ids of objects that stay leaves.
        is_new: whether the call made this object of its result, which then has to be made in every call.
    """

    def __init__(
        self,
        known: dict[int, int] | None = None,
        opaque: Callable[[int], bool] | None = None,
        is_new: Callable[[Any], bool] | None = None,
    ) -> None:
        self.leaves: list[Any] = []
        self.containers: list[Any] = []
        self._numbers: dict[int, int] = dict(known or {})
        self._offset = len(self._numbers)
        self._opaque = opaque
        self._is_new = is_new
        self._depth = 0

    def flatten(self, value: Any) -> Structure:
        """Append the leaves of `value`; return its structure.

        Raises:
            CannotTrace: a result cannot be rebuilt in later calls.
        """
        kind = type(value)
        if isinstance(value, _PLAIN) and not (
            isinstance(value, type) and self._is_new and self._is_new(value)
        ):
            self.leaves.append(value)
            return LEAF
        # Python has one empty tuple, which any guarded object may hold.
        if self._opaque is not None and not (kind is tuple and not value) and self._opaque(id(value)):
            self.leaves.append(value)
            return LEAF
        if self._depth and self._is_new is None and (context := unread.context_of(value)) is not None:
            return Structure(unread.KIND, context, ())
        number = self._numbers.get(id(value))
        if number is not None:
            return Structure("ref", number, ())
        if kind is tuple:
            return Structure(tuple, None, tuple(map(self.flatten, value)))
        if kind is torch.Size:  # a value, like a tuple: its sizes may be symbols
            return Structure(torch.Size, None, tuple(map(self.flatten, value)))
        if kind is list:
            self._remember(value)
            return Structure(list, None, tuple(map(self.flatten, value)))
        has_plain_keys = not isinstance(value, dict) or not any(
            isinstance(k, torch.Tensor) for k in dict.keys(value)
        )
        if kind is dict and has_plain_keys:
            self._remember(value)
            return Structure(dict, tuple(value), tuple(map(self.flatten, value.values())))
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return Structure(kind, None, tuple(map(self.flatten, value)))
        handler = pytree.SUPPORTED_NODES.get(kind)
        if handler is not None and has_plain_keys:
            children, context = handler.flatten_fn(value)
            self._remember(value)
            return Structure(kind, _frozen(context), tuple(map(self.flatten, children)))
        if self._is_new is not None:
            if self._is_new(value):
                return self._made_anew(value)
        elif self._depth < tuning.MAX_ARGUMENT_DEPTH and (kind in _HOLDERS or holds_tensors(value)):
            found = apart(value)
            if found is not None and found[1].base not in (set, frozenset):
                _HOLDERS.add(kind)
                return self._object(value, *found)
        self.leaves.append(value)
        return LEAF

    def _made_anew(self, value: Any) -> Structure:
        found = None if isinstance(value, _NOT_REMADE) else part_of_result(value)
        if found is None:
            raise CannotTrace(
                f"the model returns a {type(value).__name__} that each call makes anew", "", True
            )
        return self._object(value, *found)

    def _object(self, value: Any, children: list[Any], layout: Layout) -> Structure:
        self._remember(value)
        self._depth += 1
        context: Any = layout
        if layout.base is object and not layout.slots:
            context = _Attributes(layout.names)
        result = Structure(type(value), context, tuple(map(self.flatten, children)))
        self._depth -= 1
        return result

    def flatten_contents(self, value: Any) -> Structure:
        """The structure of an object like `value`, also where `value` itself is known already."""
        if type(value) in (list, dict):
            return self.flatten(type(value)(value))
        found = apart(value)
        if found is None:
            raise CannotTrace(f"the model changes its argument, a {type(value).__name__}")
        children, layout = found
        if layout.base is object and not layout.slots:
            return self.flatten(dict(zip(layout.names, children, strict=True)))
        self.containers.append(None)
        return Structure(type(value), layout, tuple(map(self.flatten, children)))

    def _remember(self, value: Any) -> None:
        self._numbers[id(value)] = self._offset + len(self.containers)
        self.containers.append(value)


def repeated(leaves: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """(index, first index) of each tensor that is also an earlier leaf: models ask `key is value`."""
    first: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), index) != index:
            found.append((index, first[id(leaf)]))
    return tuple(found)


class _Attributes(tuple):  # type: ignore[type-arg]
    """Marks a structure that is a plain object, by its attribute names."""


class _Frozen:
    """A pytree context, compared by ==."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


def _frozen(context: Any) -> _Frozen:
    # A dict's context is a list of its keys that the dict may change later.
    return _Frozen(list(context) if type(context) is list else context)


def holds_tensors(value: Any, depth: int = 0) -> bool:
    """Whether a plain object reaches a tensor through attributes and containers."""
    if isinstance(value, torch.Tensor):
        return True
    if depth > 6 or isinstance(value, (*_PLAIN, *_OPAQUE)):
        return False
    if isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        return False
    found = apart(value)
    return found is not None and any(holds_tensors(item, depth + 1) for item in found[0])


def take_apart(value: Any) -> bool:
    """From now on flatten objects of this type, with or without tensors, because calls change them.

    Returns:
        Whether that is new and possible: a plain object whose attributes all lie in its dict.
    """
    kind = type(value)
    if isinstance(value, (*_PLAIN, *_OPAQUE, enum.Enum)) or not hasattr(value, "__dict__"):
        return False
    if (
        kind in _HOLDERS
        or isinstance(value, (list, dict, set))
        or any("__slots__" in vars(c) for c in kind.__mro__)
    ):
        return False
    _HOLDERS.add(kind)
    return True


class Builder:
    """Puts values together again.

    Args:
        leaves: all leaves, in order.
        containers: what references mean: the caller's own containers.
    """

    def __init__(self, leaves: Sequence[Any], containers: Sequence[Any] = ()) -> None:
        self._leaves = iter(leaves)
        self.containers = list(containers)

    def build(self, structure: Structure) -> Any:
        """The value of the next leaves."""
        kind, children = structure.kind, structure.children
        if kind is None:
            return next(self._leaves)
        if kind == "ref":
            return self.containers[structure.context]
        if kind == unread.KIND:
            return unread.stand_in(structure.context)
        if kind is tuple:
            return tuple([self.build(child) for child in children])
        if isinstance(structure.context, Layout):
            place = len(self.containers)
            made: Any = begin(kind, structure.context)
            self.containers.append(made)
            made = finish(kind, structure.context, made, [self.build(child) for child in children])
            self.containers[place] = made
            return made
        if kind is list:
            made = []
            self.containers.append(made)
            made.extend([self.build(child) for child in children])
            return made
        if kind is dict:
            made = {}
            self.containers.append(made)
            for key, child in zip(structure.context, children, strict=True):
                made[key] = self.build(child)
            return made
        if isinstance(structure.context, _Attributes):
            made = kind.__new__(kind)
            self.containers.append(made)
            for name, child in zip(structure.context, children, strict=True):
                made.__dict__[name] = self.build(child)
            return made
        if structure.context is None:
            return structure.rebuild([self.build(child) for child in children])
        place = len(self.containers)
        self.containers.append(None)
        values = [self.build(child) for child in children]
        made = structure.rebuild(values)
        self.containers[place] = made
        return made


def contents(container: Any) -> Any:
    """The items a container holds now, to compare by identity: a list of (key, item)."""
    if type(container) is list:
        return list(enumerate(container))
    if type(container) is dict:
        return list(container.items())
    found = apart(container)
    if found is None:
        return list(vars(container).items())
    children, layout = found
    if layout.base is object and not layout.slots:
        return list(zip(layout.names, children, strict=True))
    return [(layout, None), *enumerate(children)]


def same_contents(before: list[tuple[Any, Any]], after: list[tuple[Any, Any]]) -> bool:
    """Whether two results of `contents` hold the same objects."""
    return (
        len(before) == len(after)
        and all(a is b or a == b for (a, _x), (b, _y) in zip(before, after, strict=True))
        and all(x is y for (_a, x), (_b, y) in zip(before, after, strict=True))
    )


def replace_contents(container: Any, new: Any) -> None:
    """Make a container hold what `new` (a list, a dict, or a dict of attributes) holds."""
    if type(container) is type(new) and type(container) not in (list, dict):
        replace(container, new)
        return
    if isinstance(container, list):
        container[:] = new
        return
    target = container if isinstance(container, dict) else vars(container)
    target.clear()
    target.update(new)


class ResultSpec:
    """How a call's flat outputs become its result, and what of the caller's containers it changes.

    Args:
        result: structure of the result.
        writes: (container number, structure of its new contents) of each container the model changed.
        objects: flat output -> object that is not a tensor, number or other constant of a graph; None stands for it.
    """

    def __init__(
        self,
        result: Structure,
        writes: Sequence[tuple[int, Structure]] = (),
        objects: dict[int, Any] | None = None,
    ) -> None:
        self.result = result
        self.writes = tuple(writes)
        self.objects = objects or {}
        self.single = result is LEAF and not writes and not self.objects

    def build(self, flat: Sequence[Any], containers: Sequence[Any]) -> Any:
        """The result; `containers` are the caller's, in the order they were flattened."""
        if self.single:
            return flat[0]
        if self.objects:
            flat = [self.objects.get(index, value) for index, value in enumerate(flat)]
        builder = Builder(flat, containers)
        result = builder.build(self.result)
        new = [(number, builder.build(structure)) for number, structure in self.writes]
        for number, value in new:
            replace_contents(containers[number], value)
        return result
