"""The entries of `functools.lru_cache`, in which eager finds what a trace has computed or found once.

A cache counts hits and misses, and a bounded cache orders its entries by their last call. This shows after a run which
entries its calls may have found or made. A trace is valid while these entries exist; there may be more.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Iterable
from functools import _lru_cache_wrapper
from typing import Any, TypeAlias

import torch

from staticrt import tuning
from staticrt.frontend.guards.model_builtins import is_symbolic
from staticrt.frontend.guards.records import Compared
from staticrt.frontend.guards.state_leaves import is_leaf
from staticrt.frontend.reasons import is_user_file
from staticrt.native import _C

Cache: TypeAlias = "_lru_cache_wrapper[Any]"
Entry = tuple[Any, Any]  # the key that the cache makes of arguments, the result
_NOT_LOOKED_INTO = (type, types.ModuleType, types.CodeType)


def _places() -> tuple[int, int, int]:
    """Where `gc.get_referents` lists the entries of a bounded cache: the first key, the step to the next, what follows."""

    @functools.lru_cache(maxsize=2)
    def probe(_key: str) -> object:
        return object()

    results = [probe("first"), probe("second")]
    found = list(map(id, gc.get_referents(probe)))
    first, second = (found.index(id(each)) for each in results)
    return first - 1, second - first, len(found) - (first - 1) - 2 * (second - first)


_FIRST, _STEP, _FOLLOWING = _places()


def entries_of(cache: Cache) -> list[Entry]:
    """The entries of a bounded cache, least recently used first; those of others in the order of insertion."""
    found, end = _listed(cache)
    if _is_bounded(cache):
        return list(zip(found[_FIRST:end:_STEP], found[_FIRST + 1 : end : _STEP], strict=True))
    return list(found[end].items())


def table_of(cache: Cache) -> dict[Any, Any]:
    """By key: the link of a bounded cache in its order of calls; for other caches, the result."""
    found, end = _listed(cache)
    table: dict[Any, Any] = found[end]
    return table


def _listed(cache: Cache) -> tuple[list[Any], int]:
    """The objects that a cache refers to, and the end of its list of entries in the order of calls."""
    found = gc.get_referents(cache)
    count = (len(found) - _FIRST - _FOLLOWING + 1) // _STEP  # who made it in C gave it no attributes
    return found, _FIRST + count * _STEP


def _is_bounded(cache: Cache) -> bool:
    return bool(_lru_cache_wrapper.cache_info(cache).maxsize)


class CacheRecord(Compared):
    """A cache still holds the entries that the calls of a run found or made.

    Args:
        path: of the cache.
        cache: before the run calls it.
        knows: whether the snapshot has an object, by id.
    """

    part = "answers"  # of a bounded cache

    def __init__(self, path: str, cache: Cache, knows: Callable[[int], bool]) -> None:
        self.name = f"{path}()"
        self.cache = cache
        self._knows = knows
        self._info = _lru_cache_wrapper.cache_info(cache)
        self._before = entries_of(cache)
        self._table = table_of(cache)
        self._kept: list[Entry] = []
        self._links: list[Entry] = []  # key, the place of its result in the order of calls
        self._misses = -1
        if not _is_bounded(cache):
            self.part = "scopes"

    def results(self) -> list[Any]:
        """Results in the cache that could change; if there are many, the most recently used ones."""
        return [value for _key, value in self._before if not is_plain(value)][-tuning.MAX_CACHED_RESULTS :]

    def used(self) -> list[Entry]:
        """The entries that calls since then may have found or made."""
        calls = self._calls()
        if calls == 0:
            return []
        now = entries_of(self.cache)
        if calls is None:
            return now
        if _is_bounded(self.cache):
            return now[-calls:]
        only_made = _lru_cache_wrapper.cache_info(self.cache).hits == self._info.hits
        return now[len(self._before) :] if only_made else now

    def _calls(self) -> int | None:
        """The number of calls since then; None: the cache was emptied."""
        info = _lru_cache_wrapper.cache_info(self.cache)
        hits, misses = info.hits - self._info.hits, info.misses - self._info.misses
        emptied = hits < 0 or misses < 0 or (not info.maxsize and info.currsize < len(self._before))
        return None if emptied else hits + misses

    def changes(self) -> Iterable[str]:
        """The cache, if entries that calls found are gone or entries that they made may have changed without a record."""
        calls, bound = self._calls(), self._info.maxsize
        lost = calls is None or (
            bound and calls > bound and not _holds_all(entries_of(self.cache), self._before)
        )
        return [f"the cache of {self.name}"] if lost or self._unknown() else []

    def _unknown(self) -> list[Entry]:
        """Entries that calls made and that may have changed since. Fake ones are removed in any case."""
        found = [entry for entry in self.used() if not is_plain(entry[1]) and not self._knows(id(entry[1]))]
        return [entry for entry in found if not holds_fakes(entry[1])]

    def restore(self) -> None:
        """Remove entries that calls made and that may have changed; dropped entries cannot be restored."""
        if unknown := self._unknown():
            before = {id(value) for _key, value in self._before}
            take_out(self.cache, [entry for entry in unknown if id(entry[1]) not in before])

    def empty(self) -> None:
        """Remove the entries that calls made, because their other effects have been undone."""
        before = {(id(key), id(value)) for key, value in self._before}
        made = [each for each in entries_of(self.cache) if (id(each[0]), id(each[1])) not in before]
        take_out(self.cache, made)

    def entry(self) -> tuple[Any, ...]:
        self._kept = self.used()
        if self.part == "scopes":
            return self._table, dict(self._kept)
        self._misses = -1
        return self._holds, True

    def _holds(self) -> bool:
        # A cache that is emptied makes new places; one that is full gives a place to another key at a miss.
        misses = _lru_cache_wrapper.cache_info(self.cache).misses
        if misses == self._misses and all(self._table.get(key) is link for key, link in self._links):
            return True
        links = [(key, self._table.get(key)) for key, _value in self._kept]
        for (_key, link), (_same_key, value) in zip(links, self._kept, strict=True):
            if link is None or not _same(_C.result_of_link(link), value):
                return False
        self._links, self._misses = links, misses
        return True


def take_out(cache: Cache, entries: list[Entry]) -> None:
    """Remove some entries: the others stay as they are, in their order."""
    table, is_bounded = table_of(cache), _is_bounded(cache)
    if entries and len(entries) == len(table):
        _lru_cache_wrapper.cache_clear(cache)  # counts calls anew, too
        return
    for key, _value in entries:
        if is_bounded:
            _C.take_out_of_cache(cache, table, key)
        else:
            table.pop(key, None)


def is_recorded(value: Any) -> bool:
    """Whether a value is a cache of the model's, or one that holds tensors."""
    if not isinstance(value, _lru_cache_wrapper):
        return False
    function = getattr(value, "__wrapped__", None)
    if not isinstance(function, types.FunctionType) or is_user_file(function.__code__.co_filename):
        return True
    return any(isinstance(each, torch.Tensor) for _key, result in entries_of(value) for each in _flat(result))


def _flat(value: Any) -> Iterable[Any]:
    return value.values() if type(value) is dict else value if type(value) in (tuple, list) else (value,)


def is_plain(value: Any) -> bool:
    """Whether a value cannot change and is interchangeable with an equal one."""
    return all(map(is_plain, value)) if type(value) is tuple else is_leaf(value)


def holds_fakes(value: Any) -> bool:
    """Whether a value leads to a fake tensor or a symbolic number."""
    queue, seen = [value], {id(value)}
    while queue:
        each = queue.pop()
        if is_symbolic(each) or (isinstance(each, torch.Tensor) and hasattr(each, "fake_mode")):
            return True
        if isinstance(each, types.FunctionType):
            following = [each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__]
        else:
            following = [] if isinstance(each, _NOT_LOOKED_INTO) else gc.get_referents(each)
        queue += [found for found in following if id(found) not in seen]
        seen.update(map(id, following))
    return False


def _holds_all(now: list[Entry], kept: list[Entry]) -> bool:
    """Whether all entries kept are there, in any order."""
    if not kept:
        return True
    there = {id(key): value for key, value in now}
    left = [entry for entry in kept if not _same(there.get(id(entry[0]), _C.MISSING), entry[1])]
    return all(any(_same(key, k) and _same(value, v) for k, v in now) for key, value in left)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or not is_plain(a):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) and repr(a) == repr(b)  # zeros have signs
