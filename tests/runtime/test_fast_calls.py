"""Calls that are served in C++ (`FastCall`), whichever trace they belong to."""

import collections

import pytest
import torch
from torch.utils import _pytree as pytree

import staticrt
from tests.support.threads import beside


@torch.no_grad()
def test_traces_told_apart_by_sizes_only_are_all_served_without_python():
    """Arguments of both look alike to a call tree; which program they belong to its prepared signatures say."""

    def function(x):
        return x * 2 if x.shape[0] == 1 else x - 1

    compiled = staticrt.compile(function)
    inputs = [torch.randn(1, 3), torch.randn(4, 3), torch.randn(1, 5), torch.randn(2, 3)]
    for _ in range(2):
        for x in inputs:
            assert torch.equal(compiled(x), function(x))
    assert len(compiled.explain().traces) == 2
    before = compiled._executor.fast.calls
    for x in (*inputs, *inputs[::-1]):
        assert torch.equal(compiled(x), function(x))
    assert compiled._executor.fast.calls == before + 8


class Cache:
    """Keys and values of steps so far, as decoders keep them."""

    def __init__(self):
        self.layers = []
        self.steps = 0

    def update(self, key, index):
        if index == len(self.layers):
            self.layers.append({"key": key, "dtype": key.dtype, "name": "layer"})
        else:
            self.layers[index]["key"] = torch.cat([self.layers[index]["key"], key], dim=1)
        return self.layers[index]["key"]


def decode(x, cache):
    for index in range(2):
        keys = cache.update(x, index)
        x = torch.softmax(x @ keys.mT, -1) @ keys
    return {"x": x, "cache": cache}


def fast_calls(compiled):
    return compiled._executor.fast.calls


def assert_same_cache(got, want):
    assert [*vars(got)] == [*vars(want)]
    assert got.steps == want.steps
    assert [[*layer] for layer in got.layers] == [[*layer] for layer in want.layers]
    for mine, theirs in zip(got.layers, want.layers, strict=True):
        torch.testing.assert_close(mine["key"], theirs["key"])
        assert mine["dtype"] is theirs["dtype"]
        assert mine["name"] == theirs["name"]


@torch.no_grad()
def test_a_cache_object_is_taken_apart_and_changed_in_place():
    compiled = staticrt.compile(decode)
    for _prompt in range(3):
        want_cache, got_cache = Cache(), Cache()
        layers = got_cache.layers
        before = fast_calls(compiled)
        for step in range(6):
            x = torch.randn(2, 5 if step == 0 else 1, 8)
            want, got = decode(x, want_cache), compiled(x, got_cache)
            torch.testing.assert_close(got["x"], want["x"])
            assert got["cache"] is got_cache
            assert got_cache.layers is layers
            assert_same_cache(got_cache, want_cache)
    assert fast_calls(compiled) == before + 6
    assert not compiled.explain().eager


@torch.no_grad()
def test_what_a_cache_object_holds_is_compared():
    compiled = staticrt.compile(decode)

    def filled(**changes):
        torch.manual_seed(0)
        cache = Cache()
        decode(torch.randn(2, 5, 8), cache)
        for name, value in changes.items():
            setattr(cache, name, value)
        return cache

    x = torch.randn(2, 1, 8)
    for _ in range(3):
        compiled(x, filled())
    before = fast_calls(compiled)
    compiled(x, filled())
    assert fast_calls(compiled) == before + 1

    def renamed():
        cache = filled()
        cache.layers[1]["name"] = "other"
        return cache

    def shared():  # the second layer is the first one once more: it grows by both
        cache = filled()
        cache.layers[1] = cache.layers[0]
        return cache

    def counted():
        return filled(steps=7)

    def larger():
        return filled(extra=[])

    def subclass():
        cache = filled()
        cache.__class__ = type(
            "Doubling", (Cache,), {"update": lambda self, key, i: Cache.update(self, 2 * key, i)}
        )
        return cache

    for make in (renamed, shared, counted, larger, subclass, filled):
        for _ in range(2):
            want_cache, got_cache = make(), make()
            got_cache.__class__ = type(want_cache)
            want, got = decode(x, want_cache), compiled(x, got_cache)
            torch.testing.assert_close(got["x"], want["x"])
            assert_same_cache(got_cache, want_cache)
            assert (got_cache.layers[0] is got_cache.layers[1]) == (make is shared)


@torch.no_grad()
def test_the_order_of_a_dict_is_part_of_a_call():
    def join(parts):
        return torch.cat(list(parts.values()))

    compiled = staticrt.compile(join)
    a, b = torch.randn(3), torch.randn(3)
    for _ in range(3):
        for parts in ({"a": a, "b": b}, {"b": b, "a": a}):
            assert torch.equal(compiled(parts), join(parts))


@torch.no_grad()
def test_containers_of_every_kind_are_served():
    Pair = collections.namedtuple("Pair", "first second")

    def function(pair, size, ordered, *, device, dtype, lists):
        made = pair.first.expand(size).to(device=device, dtype=dtype) + ordered["scale"]
        lists[0].append(made.sum())
        return Pair(made, lists), collections.OrderedDict(made=made, again=lists[1]), made.shape

    compiled = staticrt.compile(function)
    for _step in range(4):
        first = torch.randn(1, 3)
        results = []
        for run in (function, compiled):
            lists = [[], [first]]
            ordered = collections.OrderedDict(scale=torch.ones(3), unread=None)
            size = torch.Size([2, 3])
            options = {"device": torch.device("cpu"), "dtype": torch.float64, "lists": lists}
            pair, named, shape = run(Pair(first, (size,)), size, ordered, **options)
            assert pair.second is lists
            assert named["again"] is lists[1]
            assert type(named) is collections.OrderedDict
            assert lists[1][0] is first
            assert type(shape) is torch.Size
            results.append([*named.values(), pair.first, lists[0][0], shape])
        want, got = results
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[3], want[3])
        assert got[4] == want[4]
    assert fast_calls(compiled) > 0
    assert not compiled.explain().eager


@torch.no_grad()
def test_numbers_that_change_in_every_call_are_inputs():
    class Counter:
        def __init__(self):
            self.total = torch.zeros(3)
            self.calls = 0

    def function(x, counter):
        counter.calls += 1
        counter.total = counter.total + x * counter.calls
        return counter.total / counter.calls

    compiled = staticrt.compile(function)
    for _ in range(3):
        want_counter, got_counter = Counter(), Counter()
        before = fast_calls(compiled)
        for _ in range(6):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x, got_counter), function(x, want_counter))
            assert got_counter.calls == want_counter.calls
            assert type(got_counter.calls) is int
            torch.testing.assert_close(got_counter.total, want_counter.total)
    assert fast_calls(compiled) == before + 6


@torch.no_grad()
def test_attributes_that_lie_elsewhere_stay_pythons():
    """A class may answer for its attributes itself: what lies in the dict is not what a model reads."""

    class Twice:
        def __init__(self, value):
            self.value = value

        def __getattribute__(self, name):
            found = object.__getattribute__(self, name)
            return found * 2 if name == "value" else found

    def function(x, twice):
        return x + twice.value

    compiled = staticrt.compile(function)
    for _ in range(4):
        x, value = torch.randn(3), torch.randn(3)
        torch.testing.assert_close(compiled(x, Twice(value)), function(x, Twice(value)))


@torch.no_grad()
def test_a_failing_flatten_function_leaves_the_call_to_python():
    class Box:
        def __init__(self, value):
            self.value = value

    refuse = []

    def flatten(box):
        if refuse:
            raise ValueError("closed")
        return [box.value], None

    pytree.register_pytree_node(Box, flatten, lambda values, _context: Box(*values))

    def function(box):
        return Box(box.value * 2)

    compiled = staticrt.compile(function)
    x = torch.randn(3)
    for _ in range(4):
        assert torch.equal(compiled(Box(x)).value, x * 2)
    assert fast_calls(compiled) > 0
    refuse.append(True)
    with pytest.raises(ValueError, match="closed"):
        compiled(Box(x))
    refuse.clear()
    assert torch.equal(compiled(Box(x)).value, x * 2)


@torch.no_grad()
def test_a_cache_that_another_thread_changes_meanwhile_is_not_freed_under_a_call():
    compiled = staticrt.compile(decode)
    cache = Cache()
    compiled(torch.randn(2, 64, 64), cache)

    def change(_thread):
        for layer in list(cache.layers):
            layer["key"] = torch.randn(2, 64, 64)

    with beside(change):
        for _ in range(300):
            assert compiled(torch.randn(2, 1, 64), cache)["x"].isfinite().all()


def test_a_call_that_warns_and_then_raises_gives_both():
    """torch keeps the warnings of a call until it ends, and gave them out while the error was set: a SystemError."""

    def function(x):
        return torch.bernoulli(torch.var_mean(x, 0, unbiased=False)[1].clamp(0, 1))

    compiled = staticrt.compile(function)
    torch.set_warn_always(True)
    try:
        with torch.no_grad():
            for rows in (20, 20, 30):
                compiled(torch.rand(rows, 3))
            for run in (function, compiled, compiled, compiled):
                with (
                    pytest.warns(UserWarning, match="degrees of freedom"),
                    pytest.raises(RuntimeError, match="Expected p_in"),
                ):
                    run(torch.ones(0, 3))
    finally:
        torch.set_warn_always(False)
