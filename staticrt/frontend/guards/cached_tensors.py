"""Tensors in the caches of `functools.lru_cache`: a graph holds the tensor that its trace found, eager the one it finds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from functools import _lru_cache_wrapper
from typing import Any

import torch


class CachedTensorsRecord:
    """That a cache still holds the tensors that it held; more may have come."""

    part = "answers"

    def __init__(self, cache: _lru_cache_wrapper[Any]) -> None:
        self._cache = cache
        self._kept = frozenset(map(id, _tensors(cache)))

    def changes(self) -> Iterable[str]:
        return () if self._holds() else [f"the cache of {getattr(self._cache, '__name__', 'a function')}()"]

    def restore(self) -> None:
        """What a cache has dropped cannot be put back."""

    def entry(self) -> tuple[Callable[[], bool], bool]:
        return self._holds, True

    def holds(self) -> bool:
        raise AssertionError("C++ compares it")

    def _holds(self) -> bool:
        return self._kept <= set(map(id, _tensors(self._cache)))


def has_tensors(value: Any) -> bool:
    """Whether a value is a cache that holds tensors."""
    return isinstance(value, _lru_cache_wrapper) and next(_tensors(value), None) is not None


def _tensors(cache: Any) -> Iterator[torch.Tensor]:
    """The cached tensors, and those in cached tuples, lists and dicts."""
    found = gc.get_referents(cache)  # a bounded cache tells what its entries refer to
    yield from _held(found)
    for each in found:
        if type(each) is dict and each is not cache.__dict__:
            yield from _held(each.values())


def _held(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (tuple, list, dict):
            yield from (x for x in gc.get_referents(value) if isinstance(x, torch.Tensor))
