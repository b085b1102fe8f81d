"""Containers that a model may replace by equal ones: empty containers, and short lists of numbers and texts.

Models assign new empty caches in `train()`, and transformers' `save_pretrained` makes lists with the same items.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from staticrt.frontend.guards.records import DictRecord

_TYPES = frozenset({dict, list, set, defaultdict})
_MOST_ITEMS, _PLAIN_ITEMS = 64, frozenset({str, int, float, bool})


class ReplaceableContainers:
    """Containers that only one attribute holds; all others are compared by identity."""

    def __init__(self) -> None:
        self._records: dict[int, tuple[DictRecord, str]] = {}  # by the id of the container

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._records

    @staticmethod
    def may_have(value: Any) -> bool:
        """Whether a value is such a container."""
        return type(value) in _TYPES and (not value or _is_plain(value))

    def add(self, record: DictRecord, key: str, value: Any) -> None:
        """Add the container that the attribute `key` of a record holds."""
        record.replaceable[key] = tuple(value) if isinstance(value, list) else ()
        self._records[id(value)] = (record, key)

    def keep(self, value: Any) -> bool:
        """Something else holds the container too, so compare it by identity. Returns whether it was replaceable before."""
        if (found := self._records.pop(id(value), None)) is None:
            return False
        record, key = found
        record.replaceable.pop(key, None)
        return True


def _is_plain(value: Any) -> bool:
    """Whether a value is a short list of numbers and texts."""
    return (
        type(value) is list
        and len(value) <= _MOST_ITEMS
        and all(type(item) in _PLAIN_ITEMS for item in value)
    )
