"""Tensors that a model keeps in a `functools.lru_cache`."""

import functools

import pytest
import torch

import staticrt


def make(bounded):
    def table(size):
        return torch.arange(size).float()

    cache = functools.lru_cache(table) if bounded else functools.cache(table)
    return cache, lambda x: x * 2 + cache(x.shape[0])


@pytest.mark.parametrize("bounded", [True, False], ids=["lru_cache", "cache"])
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
def test_what_a_cache_holds_is_what_a_call_reads(bounded, gradients):
    cache, model = make(bounded)
    fast = staticrt.compile(model)

    def check(size):
        x = torch.ones(size, requires_grad=gradients)
        torch.testing.assert_close(fast(x).detach(), 2 + cache(size))

    for size in (3, 3, 4, 3, 4, 5, 3):
        check(size)
        cache(size).mul_(10)
        check(size)
    cache.cache_clear()
    check(3)
    cache(3).add_(1)
    check(3)


def test_a_call_whose_table_is_cached_is_traced():
    cache, model = make(bounded=True)
    fast = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(4):
            fast(torch.ones(3))
    (trace,) = fast.explain().traces
    assert trace.calls == 3
    assert cache.cache_info().misses == 1


def test_training_with_a_cached_table_needs_no_dynamo():
    _cache, model = make(bounded=True)
    fast = staticrt.compile(model)
    for _ in range(3):
        fast(torch.ones(3, requires_grad=True)).sum().backward()
    assert [(trace.route, trace.calls) for trace in fast.explain().traces] == [("training", 2)]


def test_a_cache_without_tensors_is_not_compared():
    @functools.lru_cache
    def scale(size):
        return float(size)

    fast = staticrt.compile(lambda x: x * scale(x.shape[0]))
    with torch.no_grad():
        for size in (3, 3, 4, 3, 4):
            torch.testing.assert_close(fast(torch.ones(size)), torch.full((size,), float(size)))
    assert not fast.explain().eager
