"""Structures of arguments and results as JSON.

Loading never imports classes. Containers come from pytree's registry, namedtuples from already imported modules (or are
created), and other classes from the caller's list.
"""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.archive import literals
from staticrt.errors import ArchiveError
from staticrt.frontend.arguments import unread
from staticrt.frontend.arguments.layouts import Layout
from staticrt.frontend.arguments.structure import LEAF, ResultSpec, Structure, _Attributes, _Frozen, _frozen


def type_name(kind: type) -> str:
    """The name of a class in archives: "package.module:Outer.Inner"."""
    return f"{kind.__module__}:{kind.__qualname__}"


def encode(structure: Structure) -> Any:
    """JSON of a structure.

    Raises:
        ArchiveError: a container's own data is not a constant.
    """
    kind, context = structure.kind, structure.context
    children = [encode(child) for child in structure.children]
    if kind is None:
        return "*"
    if kind == "ref":
        return {"ref": context}
    if kind in (tuple, list, torch.Size):
        return {kind.__name__.lower(): children}
    if kind == unread.KIND:
        raise ArchiveError(
            f"an archive cannot hold the structure of an argument that holds a {type_name(context[0])}"
        )
    if isinstance(context, Layout):
        raise ArchiveError(f"an archive cannot hold the structure of a {type_name(kind)}")
    try:
        if kind is dict:
            return {"dict": children, "keys": [literals.encode(key) for key in context]}
        if isinstance(context, _Attributes):
            return {"object": children, "type": type_name(kind), "attributes": list(context)}
        if context is None:
            return {"namedtuple": children, "type": type_name(kind), "fields": list(kind._fields)}
        return {"node": children, "type": type_name(kind), "context": literals.encode(context.value)}
    except literals.NotLiteral as error:
        raise ArchiveError(
            f"an archive cannot hold a {type_name(kind)} whose keys or context have type {error}",
            fix="pass tensors in tuples, lists or dicts with string keys",
        ) from None


def encode_result(spec: ResultSpec) -> dict[str, Any]:
    """JSON of a result's structure and of the caller's containers that the call changes.

    Raises:
        ArchiveError: the result holds an object that cannot be saved.
    """
    if spec.objects:
        held = next(iter(spec.objects.values()))
        raise ArchiveError(f"an archive cannot hold a result of type {type(held).__name__}")
    return {
        "result": encode(spec.result),
        "writes": [[number, encode(structure)] for number, structure in spec.writes],
    }


class Decoder:
    """Reads structures.

    Args:
        types: classes of arguments and results besides containers.
    """

    def __init__(self, types: Sequence[type] = ()) -> None:
        self._types: Mapping[str, type] = {type_name(kind): kind for kind in types}

    def structure(self, data: Any) -> Structure:
        """Decode a structure of `encode`.

        Raises:
            ArchiveError: the data is damaged, or names an unknown class.
        """
        try:
            return self._structure(data)
        except (KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
            raise ArchiveError(
                f"archive is damaged: a structure of arguments or results ({error!r})"
            ) from None

    def result(self, data: Any) -> ResultSpec:
        """Decode a result of `encode_result`."""
        try:
            writes = [(int(number), structure) for number, structure in data["writes"]]
            result = data["result"]
        except (KeyError, ValueError, TypeError) as error:
            raise ArchiveError(f"archive is damaged: the structure of a result ({error!r})") from None
        return ResultSpec(self.structure(result), [(n, self.structure(item)) for n, item in writes])

    def _structure(self, data: Any) -> Structure:
        if data == "*":
            return LEAF
        if "ref" in data:
            return Structure("ref", int(data["ref"]), ())
        kind = next(iter(data))
        children = tuple(self._structure(child) for child in data[kind])
        plain: dict[str, type] = {"tuple": tuple, "list": list, "size": torch.Size}
        if kind in plain:
            return Structure(plain[kind], None, children)
        if kind == "dict":
            return Structure(dict, tuple(map(literals.decode, _as_many(data["keys"], children))), children)
        if kind == "object":
            names = _Attributes(map(str, _as_many(data["attributes"], children)))
            return Structure(self._object_type(data["type"]), names, children)
        if kind == "namedtuple":
            fields = tuple(map(str, _as_many(data["fields"], children)))
            return Structure(_namedtuple_type(data["type"], fields), None, children)
        if kind == "node":
            found = _node_type(data["type"])
            return Structure(found, _frozen(literals.decode(data["context"])), children)
        raise KeyError(kind)

    def _object_type(self, name: str) -> type:
        found = self._types.get(name)
        if found is None:
            raise ArchiveError(
                f"arguments or results of the model are objects of class {name}, which must be passed in types=",
                fix=f"staticrt.load(path, types=[{name.split(':')[-1]}])",
            )
        return found


def _as_many(items: Sequence[Any], children: Sequence[Any]) -> Sequence[Any]:
    if len(items) != len(children):
        raise ValueError(f"{len(items)} names for {len(children)} parts")
    return items


def _namedtuple_type(name: str, fields: tuple[str, ...]) -> type:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, tuple) and getattr(found, "_fields", None) == fields:
        return found
    return _own_namedtuple(path.split(".")[-1], fields)


@functools.cache
def _own_namedtuple(name: str, fields: tuple[str, ...]) -> type:
    return collections.namedtuple(name, fields)  # type: ignore[misc]


def _node_type(name: str) -> type:
    for kind in pytree.SUPPORTED_NODES:
        if type_name(kind) == name:
            return kind
    raise ArchiveError(
        f"arguments or results of the model are of class {name}, which is not registered with torch.utils._pytree",
        fix=f"import {name.split(':')[0]}, or register the class, before loading",
    )


def count_leaves(structure: Structure) -> int:
    """Number of leaves."""
    if structure.kind is None:
        return 1
    return sum(map(count_leaves, structure.children))


def largest_reference(structure: Structure) -> int:
    """The largest container number that a structure refers to, or -1."""
    own = structure.context if structure.kind == "ref" else -1
    return max([own, *map(largest_reference, structure.children)])


def leaf_paths(structure: Structure, name: str) -> list[str]:
    """A readable path for each leaf: "x[0]['mask']"."""
    kind, context = structure.kind, structure.context
    if kind is None:
        return [name]
    if kind is dict:
        parts = [f"{name}[{key!r}]" for key in context]
    elif isinstance(context, _Attributes):
        parts = [f"{name}.{attribute}" for attribute in context]
    elif isinstance(context, _Frozen) and isinstance(context.value, list):
        parts = [f"{name}[{key!r}]" for key in context.value[: len(structure.children)]]
        parts += [f"{name}[{i}]" for i in range(len(parts), len(structure.children))]
    else:
        parts = [f"{name}[{i}]" for i in range(len(structure.children))]
    return [
        path
        for child, part in zip(structure.children, parts, strict=True)
        for path in leaf_paths(child, part)
    ]
