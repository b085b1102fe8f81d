"""Entries of a `functools.lru_cache`: listing them, comparing them, and leaving those that the user put there."""

import copy
import functools

import pytest
import torch

import staticrt
from staticrt.frontend.guards import caches
from staticrt.native import _C


@pytest.mark.parametrize("count", [1, 2, 3])
def test_entries_of_bounded_caches(count):
    """In the order of their calls, whatever a result is."""
    cache = functools.lru_cache(lambda *key: key or {})
    for number in range(count):
        cache(number, "a")
    cache(0, "a")
    cache()
    keys = [*range(1, count), 0]
    assert caches.entries_of(cache) == [*(((key, "a"), (key, "a")) for key in keys), ((), {})]


@pytest.mark.parametrize("bounded", [True, False], ids=["lru_cache", "cache"])
def test_of_many_entries_those_that_were_called_for_are_compared(bounded):
    """A cache without a bound does not tell which it found."""
    cache = functools.lru_cache(maxsize=1000 if bounded else None)(float)
    for number in range(500):
        cache(number)
    record = caches.CacheRecord("cache", cache, lambda _id: False)
    assert record.used() == []
    cache(1)
    assert len(record.used()) == (1 if bounded else 500)
    assert record.used()[-1] == ((1, 1.0) if bounded else (499, 499.0))


# -- what the user has put into a cache before --------------------------------------------------------------------


class Row(list):
    def __init__(self, first):
        super().__init__([float(first)])


class Rows:
    def __call__(self, first):
        return [float(first)]

    def of(self, first):
        return [float(first)]


def row(first):
    return [float(first)]


def tensor(first):
    return torch.full((1,), float(first))


def nested(first):
    return {"a": [row(first), (tensor(first),)]}[chr(97)][1]


MAKERS = {
    "class": Row,
    "C type": bytearray,
    "partial": functools.partial(row),
    "callable object": Rows(),
    "bound method": Rows().of,
    "function": row,
    "tensor": tensor,
    "nested tensor": nested,
}


def use_with_entries_of_the_user(make_row, maxsize, gradients, compiled):
    """What calls give, which entries of the user's are there afterwards, and what the cache holds in which order."""
    cache = functools.lru_cache(maxsize)(make_row)
    first = (lambda key: cache(key)[0][0]) if make_row is nested else lambda key: cache(key)[0]
    kept = [cache(key) for key in (7, 8, 9)]
    for each in kept:
        (each[0] if make_row is nested else each)[0] += 5

    def model(x):
        return x * 1 + make_row(3)[0] * 0 + first(1) + first(8) * 10 + first(2) * 100

    function = staticrt.compile(model) if compiled else model
    found = []
    for _ in range(3):
        found.append(function(torch.ones(3, requires_grad=gradients)).detach())
    order = [key for key, _value in caches.entries_of(cache)]
    same = [cache(key) is each for key, each in zip((7, 8, 9), kept, strict=True)]
    cache(20), cache(21), cache(22), cache(23)
    return found, same, order, [(k, copy.deepcopy(v)) for k, v in caches.entries_of(cache)]


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("maxsize", [5, 6, 128, None])
@pytest.mark.parametrize("make_row", MAKERS.values(), ids=MAKERS)
def test_entries_of_the_user_stay(make_row, maxsize, gradients):
    want, got = (
        use_with_entries_of_the_user(make_row, maxsize, gradients, compiled) for compiled in (False, True)
    )
    torch.testing.assert_close(got[0], want[0], rtol=0, atol=0)
    assert got[1] == want[1] == [True] * 3
    assert got[2] == want[2]
    assert str(got[3]) == str(want[3])


@pytest.mark.parametrize("maxsize", [4, None])
def test_entries_are_taken_out_one_by_one(maxsize):
    cache = functools.lru_cache(maxsize)(lambda key: [key])
    kept = {key: cache(key) for key in "abcd"}
    caches.take_out(cache, [(key, kept[key]) for key in "da"])
    assert caches.entries_of(cache) == [("b", ["b"]), ("c", ["c"])]
    assert cache.cache_info().currsize == 2
    assert cache("b") is kept["b"]
    assert cache("a") is not kept["a"]
    for key in "efg":
        cache(key)
    keys = [key for key, _value in caches.entries_of(cache)]
    assert keys == (list("aefg") if maxsize else list("bcaefg"))
    caches.take_out(cache, caches.entries_of(cache))
    assert caches.entries_of(cache) == []
    assert cache.cache_info()[:2] == (0, 0)


def test_misses_between_calls_do_not_lead_to_a_walk_over_all_entries(monkeypatch):
    cache = functools.lru_cache(maxsize=64)(lambda key: key * 2.0)
    fast = staticrt.compile(lambda x: x + cache(1))
    walks = []
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(2))
        real = caches.entries_of
        monkeypatch.setattr(caches, "entries_of", lambda asked: walks.append(asked) or real(asked))
        for key in range(200):
            cache(1)
            cache(1000 + key)
            assert fast(torch.ones(2)).tolist() == [3.0, 3.0]
    assert not walks
    assert sum(trace.calls for trace in fast.explain().traces) == 203


def test_only_a_cache_has_entries_to_take_out():
    with pytest.raises(TypeError, match=r"expected a function of functools\.lru_cache"):
        _C.take_out_of_cache(lambda x: x, {1: 2}, 1)
    cached = functools.lru_cache(lambda x: x)
    with pytest.raises(TypeError, match="expected an entry of"):
        _C.take_out_of_cache(cached, {1: 2}, 1)
