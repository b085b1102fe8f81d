"""Tensors that a model replaces between calls: one that drops its cache in `train()` fills it again later.

A trace that reads such a tensor also serves the new one if only identities differ: the new tensor must be in every place
where the snapshot found the old one, or a container of it, and it must not have been in any place before.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from staticrt.frontend.guards.records import MISSING, DictRecord, ListRecord, Record
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.frontend.guards.state_leaves import is_leaf
from staticrt.frontend.guards.value_records import TensorRecord
from staticrt.native import _C

_CONTAINERS = (dict, list, tuple)
_MOST_ITEMS, _MOST_LEVELS = 64, 3  # of containers that are looked into


class RemadeTensors:
    """Finds what has replaced the constants of a trace.

    Args:
        snapshot: of the trace, after its guard was made.
        constants: tensors of the model, neither parameters nor buffers, that the graph reads.
    """

    def __init__(self, snapshot: Snapshot, constants: Sequence[torch.Tensor]) -> None:
        self._snapshot = snapshot
        self._constants = frozenset(map(id, constants))
        held = [each for each in snapshot.guarded if isinstance(each, (DictRecord, ListRecord))]
        # Those of containers come last: one that was replaced itself may have been emptied.
        held.sort(key=lambda record: self._leads(record.live))
        slots = [
            (record, key, old) for record in held for key, old in _items(record.saved) if self._leads(old)
        ]
        self._slots = slots if snapshot.compares_objects_only() else []

    def find(self) -> tuple[StateGuard, dict[int, Any]] | None:
        """The guard of the state as it is now, and by the id of each object that was replaced the one in its place.

        Returns:
            None where nothing was replaced, or where more than identities may differ.
        """
        match = _Match()
        for record, key, old in self._slots:
            if match.is_in_place(record.live) and not match.same(old, _now(record.live, key)):
                return None
        replaced = match.replaced()
        if (
            not replaced
            or len(set(map(id, replaced.values()))) != len(replaced)
            or any(self._snapshot.knows(id(new)) for new in replaced.values())
            or any(self._snapshot.num_holders(address) != match.places[address] for address in replaced)
        ):
            return None
        records = [_again(record, replaced) for record in self._snapshot.guarded]
        return self._snapshot.guard_of(records), replaced

    def __bool__(self) -> bool:
        return bool(self._slots)

    def _leads(self, value: Any, levels: int = _MOST_LEVELS) -> bool:
        """Whether a value is a constant, or a container that holds one."""
        if type(value) not in _CONTAINERS or not levels or len(value) > _MOST_ITEMS:
            return id(value) in self._constants
        return any(self._leads(item, levels - 1) for _key, item in _items(value))


class _Match:
    """Which object lies in place of which, and in how many places; no cycle of references, which would hold them."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, Any]] = {}
        self.places: Counter[int] = Counter()

    def same(self, old: Any, new: Any) -> bool:
        """Whether the contents of a place differ from the former ones only in identities."""
        if is_leaf(old):
            return old is new or (type(old) is type(new) and type(old) in (int, str) and old == new)
        self.places[id(old)] += 1
        if id(old) in self._pairs:
            return self._pairs[id(old)][1] is new
        self._pairs[id(old)] = old, new
        return old is new or (_alike(old, new) and all(self.same(a, b) for a, b in _pairs(old, new)))

    def is_in_place(self, container: Any) -> bool:
        """Whether no other object was found in a container's place."""
        return container is self._pairs.get(id(container), (None, container))[1]

    def replaced(self) -> dict[int, Any]:
        """Id of each replaced object -> its replacement."""
        return {address: new for address, (old, new) in self._pairs.items() if old is not new}


def _items(container: Any) -> Iterable[tuple[Any, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _now(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key, MISSING)
    return container[key] if isinstance(container, list) and key < len(container) else MISSING


def _pairs(old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(old, dict):
        return zip(old.values(), new.values(), strict=True)
    return zip(old, new, strict=True) if isinstance(old, (list, tuple)) else ()


def _alike(old: Any, new: Any) -> bool:
    """Whether two objects differ in nothing but their identity and their items or elements."""
    if type(old) is not type(new):
        return False
    if type(old) is torch.Tensor:
        return _layout(old) == _layout(new) and not (_C.attributes_of(old) or _C.attributes_of(new))
    if type(old) is dict:
        return [(type(key), key) for key in old] == [(type(key), key) for key in new] and all(
            map(is_leaf, old)
        )
    return type(old) in _CONTAINERS and len(old) == len(new)


def _layout(value: torch.Tensor) -> tuple[Any, ...]:
    """What a trace may have assumed of a dense tensor without gradients; others equal themselves only."""
    if value.layout is not torch.strided or value.requires_grad:
        return (id(value),)
    place = (value.shape, value.stride(), value.storage_offset(), value.device)
    return (*place, value.dtype, value.is_inference(), value.is_conj(), value.is_neg(), value._is_view())


def _again(record: Record, replaced: dict[int, Any]) -> Record:
    """The record of the same place, with what lies there now."""
    if isinstance(record, TensorRecord) and id(record.live) in replaced:
        return record.of(replaced[id(record.live)])
    if not isinstance(record, (DictRecord, ListRecord)):
        return record
    held = [item for _key, item in _items(record.saved)]
    if id(record.live) not in replaced and replaced.keys().isdisjoint(map(id, held)):
        return record
    again = copy.copy(record)
    again.live = replaced.get(id(record.live), record.live)
    now = [replaced.get(id(item), item) for item in held]
    again.saved = dict(zip(record.saved, now, strict=True)) if isinstance(record, DictRecord) else now
    return again
