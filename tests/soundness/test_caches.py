"""What a model keeps in a `functools.lru_cache`: tensors, and other results."""

import copy
import functools
import time
import types

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


def test_more_may_come_into_a_cache():
    @functools.lru_cache
    def scale(size):
        return float(size)

    fast = staticrt.compile(lambda x: x * scale(x.shape[0]))
    with torch.no_grad():
        for size in (3, 3, 4, 3, 4):
            torch.testing.assert_close(fast(torch.ones(size)), torch.full((size,), float(size)))
    assert not fast.explain().eager


# -- caches without tensors: each gives a model, and what happens between its calls -------------------------------


def numbers():
    table = {"a": 1.0}
    cache = functools.lru_cache(lambda: table["a"])
    yield lambda x: x * cache()
    yield lambda: table.update(a=2.0)
    yield cache.cache_clear
    yield lambda: table.update(a=3.0)
    yield lambda: (cache.cache_clear(), cache())


def numbers_of_an_unbounded_cache():
    table = {"a": 1.0}
    cache = functools.cache(lambda: table["a"])
    yield lambda x: x * cache()
    yield lambda: (table.update(a=2.0), cache.cache_clear())
    yield lambda: table.update(a=1.0)
    yield cache.cache_clear
    yield lambda: table.update(a=2.0)


def emptied_and_filled_alike():
    table = {"a": 1.0}
    cache = functools.cache(lambda: table["a"])
    yield lambda x: x * cache()
    yield cache.cache_clear
    yield lambda: table.update(a=2.0)


def evicted():
    table = {"a": 1.0, "b": 2.0, "c": 3.0}
    cache = functools.lru_cache(maxsize=2)(lambda key: table[key])
    yield lambda x: x * cache("a")
    yield lambda: table.update(a=9.0)
    yield lambda: (cache("b"), cache("c"))


def evicted_by_the_model():
    table = {"a": 1.0, "b": 2.0}
    cache = functools.lru_cache(maxsize=1)(lambda key: table[key])
    yield lambda x: x * cache("a") + cache("b")
    yield lambda: table.update(a=9.0)
    yield lambda: cache("a")
    yield lambda: table.update(a=4.0)


def what_the_function_reads_is_not_seen():
    box = [1.0]

    class Reader:
        def __call__(self):
            return box[0]

    cache = functools.lru_cache(Reader())
    cache()
    yield lambda x: x * cache()
    yield lambda: box.__setitem__(0, 6.0)
    yield cache.cache_clear


def list_changed_by_the_caller():
    cache = functools.cache(lambda: [1.0, 2.0])
    yield lambda x: x * cache()[0]
    yield lambda: cache().__setitem__(0, 7.0)
    yield cache.cache_clear
    yield lambda: cache().__setitem__(0, 8.0)


def dicts_of_a_bounded_cache():
    cache = functools.lru_cache(maxsize=2)(lambda key: {"key": float(key)})
    yield lambda x: x * cache(1)["key"] + cache(2)["key"]
    yield lambda: (cache(1), cache(2))
    yield lambda: cache(2).update(key=7.0)
    yield lambda: (cache(3), cache(4), cache(1), cache(2))
    yield lambda: (cache.cache_clear(), cache(1), cache(2).update(key=5.0))


def list_changed_by_the_model(function=lambda: [0.0]):
    cache = functools.lru_cache(function)

    def model(x):
        cache()[0] += 1
        return x * cache()[0]

    yield model
    yield lambda: None
    yield cache.cache_clear


def list_of_a_partial_changed_by_the_model():
    yield from list_changed_by_the_model(functools.partial(lambda first: [first], 0.0))


def object_of_a_method():
    class Net(torch.nn.Module):
        scale = 2.0

        @functools.lru_cache  # noqa: B019
        def table(self):
            return types.SimpleNamespace(a=self.scale)

        def forward(self, x):
            return x * self.table().a

    net = Net()
    yield net
    yield lambda: setattr(net.table(), "a", 5.0)
    yield lambda: setattr(net, "scale", 3.0)
    yield Net.table.cache_clear


def a_cache_in_a_cache():
    table = {"a": 1.0}
    inner = functools.cache(lambda: table["a"])
    outer = functools.cache(lambda: [inner])
    outer()
    yield lambda x: x * outer()[0]()
    yield lambda: table.update(a=2.0)
    yield inner.cache_clear
    yield outer.cache_clear


def result_is_what_the_cache_holds():
    cache = functools.cache(lambda: [1.0])
    yield lambda x: (x, len(cache()), cache())
    yield lambda: cache().append(2.0)
    yield cache.cache_clear


def function_of_a_cache():
    cache = functools.cache(lambda: lambda x, by=[1.0]: x * by[0])
    yield lambda x: cache()(x)
    yield lambda: cache().__defaults__[0].__setitem__(0, 4.0)
    yield cache.cache_clear


def in_parts():
    table = {"a": 1.0}
    cache = functools.cache(lambda: table["a"])

    def model(x):
        y = x * cache()
        time.perf_counter()
        return y + cache()

    yield model
    yield lambda: table.update(a=2.0)
    yield cache.cache_clear


def emptied_by_the_model():
    box = [1.0]
    cache = functools.cache(lambda: box[0])

    def model(x):
        cache.cache_clear()
        return x * cache()

    yield model
    yield lambda: box.__setitem__(0, 2.0)
    yield cache


CASES = (
    *(numbers, numbers_of_an_unbounded_cache, emptied_and_filled_alike, evicted, evicted_by_the_model),
    *(what_the_function_reads_is_not_seen, list_changed_by_the_caller, list_changed_by_the_model),
    *(
        dicts_of_a_bounded_cache,
        list_of_a_partial_changed_by_the_model,
        object_of_a_method,
        a_cache_in_a_cache,
        in_parts,
    ),
    *(result_is_what_the_cache_holds, function_of_a_cache, emptied_by_the_model),
)


def answers(case, gradients, compiled):
    steps = case()
    model = next(steps)
    function = staticrt.compile(model) if compiled else model
    found = []
    for step in (lambda: None, *steps):
        step()
        for _ in range(2):
            found.append(copy.deepcopy(_detached(function(torch.ones(3, requires_grad=gradients)))))
    return found


def _detached(result):
    return (
        tuple(map(_detached, result))
        if isinstance(result, tuple)
        else getattr(result, "detach", lambda: result)()
    )


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_call_reads_what_a_cache_without_tensors_holds(case, gradients):
    want, got = (answers(case, gradients, compiled) for compiled in (False, True))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_numbers_of_a_cache_are_compiled():
    steps = numbers()
    fast = staticrt.compile(next(steps))
    with torch.no_grad():
        for step in steps:
            fast(torch.ones(3))
            step()
    assert not fast.explain().eager


def test_a_cache_that_no_call_asks_is_not_compared():
    cache = functools.cache(lambda: 2.0)
    cache()
    fast = staticrt.compile(lambda x: x * 3 if x.shape[0] else x * cache())
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(3))
            cache.cache_clear()
    (trace,) = fast.explain().traces
    assert trace.calls == 3


@pytest.mark.parametrize("maxsize", [None, 2])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_a_cached_function_counts(gradients, maxsize):
    """The trace runs it, finds that it changes state and puts that back: eager has to run it again."""

    def make():
        calls = []

        @functools.lru_cache(maxsize)
        def scale(number):
            calls.append(number)
            return number * 2.0

        return lambda x, number: (x * scale(number), len(calls))

    function, plain = make(), make()
    compiled = staticrt.compile(function)
    for number in (1, 2, 1, 3, 2, 2):
        x = torch.ones(2, requires_grad=gradients)
        torch.testing.assert_close(compiled(x, number), plain(x, number))
