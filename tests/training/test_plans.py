"""The cache of plans: bounded, the least recently used go, each key compiled once."""

import threading

import pytest
import torch

import staticrt
from staticrt.training.plans import PlanCache


def test_the_least_recently_used_go():
    made = []
    cache = PlanCache(lambda key: made.append(key) or key.upper(), capacity=2)
    assert [cache.get(key) for key in "abac"] == ["A", "B", "A", "C"]
    assert [key for key, _plan in cache.items()] == ["a", "c"]  # b was used longest ago
    assert (cache.counters.hits, cache.counters.misses, cache.counters.evicted) == (1, 3, 1)
    cache.get("a")
    cache.get("b")
    assert [key for key, _plan in cache.items()] == ["a", "b"]
    assert made == ["a", "b", "c", "b"]


def test_threads_compile_a_key_once():
    started, go, made = threading.Event(), threading.Event(), []

    def make(key):
        made.append(key)
        started.set()
        assert go.wait(60)
        return key

    cache = PlanCache(make, capacity=2)
    found = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a"))) for _ in range(3)]
    threads[0].start()
    assert started.wait(60)
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert (found, made) == (["a"] * 3, ["a"])
    assert cache.counters.hits == 2


def test_a_plan_that_fails_is_tried_again():
    calls = []

    def make(key):
        calls.append(key)
        if len(calls) == 1:
            raise ValueError("once")
        return key

    cache = PlanCache(make, capacity=1)
    with pytest.raises(ValueError, match="once"):
        cache.get("a")
    assert cache.get("a") == "a"


def test_the_option_bounds_the_plans_of_the_native_node():
    fast = staticrt.compile(lambda x, y: (x.sin() * y).sum(), max_plans=1)
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for wanted in ([x], [y], [x, y], [x]):
        gradients = torch.autograd.grad(fast(x, y), wanted)
        torch.testing.assert_close(gradients, torch.autograd.grad((x.sin() * y).sum(), wanted))
    (joint,) = fast._executor.snapshot().joint_traces
    assert joint.executable.region.num_plans == 1
