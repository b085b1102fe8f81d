"""Which of the objects that a snapshot met code can reach by the names in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Set
from typing import Any


class Reachable:
    """A graph of references between objects, by the ids of objects that the snapshot keeps alive.

    A container refers to its items, and a function to the contents of its cells. An object refers to the value of an
    attribute only for code that contains the attribute's name.
    """

    def __init__(self) -> None:
        self._roots: set[int] = set()
        self._next: dict[int, list[int]] = {}
        self._attributes: dict[int, list[tuple[str | None, int]]] = {}

    def add_root(self, value: Any) -> None:
        """Code reaches the value by any name."""
        self._roots.add(id(value))

    def add(self, owner: Any, values: Iterable[Any]) -> None:
        """`owner` leads to them."""
        self._next.setdefault(id(owner), []).extend(map(id, values))

    def add_attribute(self, owner: Any, name: str | None, value: Any) -> None:
        """`owner` leads to it for code that has the name; None: for any code."""
        self._attributes.setdefault(id(owner), []).append((name, id(value)))

    def num_holders(self, address: int) -> int:
        """The number of known references to the object with this id; very many for roots, which are referenced elsewhere."""
        held = sum(found.count(address) for found in self._next.values())
        named = sum(value == address for found in self._attributes.values() for _name, value in found)
        return held + named + sys.maxsize * (address in self._roots)

    def by(self, names: Set[str]) -> set[int]:
        """Ids of what code with these names reaches."""
        found: set[int] = set()
        stack = [*self._roots]
        while stack:
            if (at := stack.pop()) not in found:
                found.add(at)
                stack += self._next.get(at, ())
                stack += [
                    value for name, value in self._attributes.get(at, ()) if name is None or name in names
                ]
        return found
