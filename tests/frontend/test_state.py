"""Python state that a model reads by name: whatever changes between two calls, the next call sees it."""

import array
import collections
import contextvars
import functools
import itertools
import os
import threading
import types
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import staticrt
from tests.support import state_settings as settings

FLAG = contextvars.ContextVar("flag", default=1.0)
LOCAL = threading.local()
LOCAL.value = 1.0
PROXIED = {"a": 1.0}
counts = itertools.count()


class Slots:
    __slots__ = ("k",)

    def __init__(self):
        self.k = 1.0


class Gain:
    def __init__(self):
        self.value = 1.0
        self.inner = types.SimpleNamespace(factors=[1.0])

    def __call__(self, x):
        return x * self.value * self.inner.factors[0]


GAIN = Gain()


def helper(x):
    return x * 2


def variable():
    number = 1.0

    def get():
        return number

    def put(value):
        nonlocal number
        number = value

    return get, put


get, put = variable()


def numbered():
    number = 0.0

    def advance():
        nonlocal number
        number += 1
        return number

    return advance


advance = numbered()


def counted(function):
    calls = {"n": 0.0}

    @functools.wraps(function)
    def wrapper(*args):
        calls["n"] += 1.0
        return function(*args) + calls["n"]

    return wrapper


@counted
def decorated(x):
    return x * 1


class Base(nn.Module):
    factor = 1.0
    table: ClassVar[list[float]] = [1.0, 2.0]

    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)

    def step(self, x):
        return x + 1


def model(forward, **attributes):
    """A module of a class of its own."""

    class Model(Base):
        pass

    Model.forward = forward
    return Model(**attributes)


def scaled_by(factors):
    return lambda x: x * factors[0]


def grow(owner, name, by=3.0):
    setattr(owner, name, getattr(owner, name) + by)


def grow_item(container, key, by=3.0):
    container[key] = container[key] + by


def hooked(_attributes=None):
    factors = [1.0]
    made = model(lambda self, x: self.layer(x), layer=nn.Identity(), kept={"factors": factors})
    made.layer.register_forward_hook(lambda _m, _a, out: out * factors[0])
    return made


CHANGES = {
    "module's number": (
        lambda: model(lambda self, x: x * settings.SCALE),
        lambda m: grow(settings, "SCALE"),
    ),
    "module's list": (
        lambda: model(lambda self, x: x * settings.TABLE[0]),
        lambda m: grow_item(settings.TABLE, 0),
    ),
    "global of a module's function": (
        lambda: model(lambda self, x: settings.helper(x)),
        lambda m: grow(settings, "SCALE"),
    ),
    "closure of a module's function": (
        lambda: model(lambda self, x: settings.made(x)),
        lambda m: grow_item(settings.made.state, "k"),
    ),
    "class constant": (
        lambda: model(lambda self, x: x + settings.Config.bias),
        lambda m: grow(settings.Config, "bias"),
    ),
    "own class's attribute": (
        lambda: model(lambda self, x: x * self.factor),
        lambda m: grow(type(m), "factor"),
    ),
    "base class's attribute": (
        lambda: model(lambda self, x: x * self.factor),
        lambda m: grow(Base, "factor"),
    ),
    "own class's list": (
        lambda: model(lambda self, x: x * self.table[0]),
        lambda m: grow_item(Base.table, 0),
    ),
    "attribute by name": (
        lambda: model(lambda self, x: x * getattr(self, "factor")),  # noqa: B009 - the point
        lambda m: grow(type(m), "factor"),
    ),
    "patched forward": (
        lambda: model(lambda self, x: x * 2),
        lambda m: setattr(type(m), "forward", lambda self, x: x * 77),
    ),
    "patched forward of a layer": (
        lambda: model(lambda self, x: self.layer(x), layer=model(lambda self, x: x + 1)),
        lambda m: setattr(type(m.layer), "forward", lambda self, x: x * 77),
    ),
    "patched method": (
        lambda: model(lambda self, x: self.step(x)),
        lambda m: setattr(type(m), "step", lambda self, x: x * 77),
    ),
    "patched function": (
        lambda: model(lambda self, x: helper(x)),
        lambda m: globals().__setitem__("helper", lambda x: x - 100),
    ),
    "closure": (lambda: model(lambda self, x: x * get()), lambda m: put(get() + 3)),
    "object": (lambda: model(lambda self, x: GAIN(x)), lambda m: grow(GAIN, "value")),
    "object's list": (lambda: model(lambda self, x: GAIN(x)), lambda m: grow_item(GAIN.inner.factors, 0)),
    "object behind a weak reference": (
        lambda: model(lambda self, x: x * self.ref().value, ref=weakref.ref(GAIN)),
        lambda m: grow(GAIN, "value"),
    ),
    "slots": (lambda: model(lambda self, x: x * self.c.k, c=Slots()), lambda m: grow(m.c, "k")),
    "thread's own": (lambda: model(lambda self, x: x + LOCAL.value), lambda m: grow(LOCAL, "value")),
    "context variable": (lambda: model(lambda self, x: x + FLAG.get()), lambda m: FLAG.set(FLAG.get() + 3)),
    "function in a dict": (
        lambda: model(lambda self, x: self.d["f"](x), d={"f": scaled_by([2.0])}),
        lambda m: grow_item(m.d["f"].__closure__[0].cell_contents, 0),
    ),
    "function in a list": (
        lambda: model(lambda self, x: self.d[0](x), d=[scaled_by([2.0])]),
        lambda m: grow_item(m.d[0].__closure__[0].cell_contents, 0),
    ),
    "function attribute": (
        lambda: model(lambda self, x: self.f(x), f=scaled_by([2.0])),
        lambda m: grow_item(m.f.__closure__[0].cell_contents, 0),
    ),
    "default argument": (
        lambda: model(lambda self, x: self.f(x), f=lambda x, d={"k": 1.0}: x * d["k"]),
        lambda m: grow_item(m.f.__defaults__[0], "k"),
    ),
    "partial's keyword": (
        lambda: model(lambda self, x: self.p(x), p=functools.partial(torch.mul, other=2.0)),
        lambda m: grow_item(m.p.keywords, "other"),
    ),
    "partial's argument": (
        lambda: model(lambda self, x: self.p(x), p=functools.partial(lambda d, x: x * d["k"], {"k": 1.0})),
        lambda m: grow_item(m.p.args[0], "k"),
    ),
    "hook's closure": (hooked, lambda m: grow_item(m.kept["factors"], 0)),
    "set": (
        lambda: model(lambda self, x: x * 2 if "a" in self.s else x, s={"b"}),
        lambda m: m.s.symmetric_difference_update({"a"}),
    ),
    "deque": (
        lambda: model(lambda self, x: x * self.q[0], q=collections.deque([1.0])),
        lambda m: m.q.appendleft(m.q[0] + 3),
    ),
    "read-only view of a dict": (
        lambda: model(lambda self, x: x * self.p["a"], p=types.MappingProxyType(PROXIED)),
        lambda m: grow_item(PROXIED, "a"),
    ),
    "numpy array": (
        lambda: model(lambda self, x: x * float(self.a[0]), a=np.ones(4)),
        lambda m: grow_item(m.a, 0),
    ),
    "array": (
        lambda: model(lambda self, x: x * self.a[0], a=array.array("d", [1.0])),
        lambda m: grow_item(m.a, 0),
    ),
    "environment": (
        lambda: model(lambda self, x: x * float(os.environ.get("STATICRT_TEST_FACTOR", "1"))),
        lambda m: os.environ.update(
            STATICRT_TEST_FACTOR=str(1 + float(os.environ.get("STATICRT_TEST_FACTOR", "1")))
        ),
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_what_a_model_reads_are_seen(change, monkeypatch):
    monkeypatch.setenv("STATICRT_TEST_FACTOR", "1")
    make, act = CHANGES[change]
    made, x = make(), torch.ones(2, 3)
    compiled = staticrt.compile(made)
    for _ in range(3):
        for _ in range(3):
            assert torch.equal(compiled(x), made(x))
        before = made(x)
        act(made)
        assert not torch.equal(made(x), before) or change.startswith("patched")


@torch.no_grad()
@pytest.mark.parametrize(
    "make",
    [
        lambda: model(lambda self, x: x + next(self.it), it=itertools.count()),
        lambda: model(lambda self, x: x + next(counts)),
        lambda: model(lambda self, x: x + next(self.it), it=(float(i) for i in range(99))),
        lambda: model(lambda self, x: x + next(self.it), it=iter([float(i) for i in range(99)])),
        lambda: model(lambda self, x: x + advance()),
        lambda: model(lambda self, x: decorated(x)),
    ],
    ids=["count", "global count", "generator", "iterator", "closure", "decorator"],
)
def test_each_call_moves_on(make):
    compiled = staticrt.compile(make())
    seen = [float(compiled(torch.zeros(2))[0]) for _ in range(6)]
    assert seen == [seen[0] + i for i in range(6)]


@torch.no_grad()
def test_what_a_trace_needs_not_watch_costs_no_trace():
    """Lists that the model itself makes, inner functions that write to them, names of other modules' state."""

    def forward(self, x):
        parts, total = [], 0.0

        def put_part(part):
            nonlocal total
            total += 1.0
            parts.append(part * total)

        for part in x.unbind(0):
            put_part(part)
        return torch.stack(parts)

    compiled = staticrt.compile(model(forward))
    for size in (3, 3, 3):
        x = torch.randn(size, 4)
        assert torch.equal(compiled(x), compiled._module(x))
    assert len(compiled.explain().traces) == 1
    assert not compiled.explain().eager


def test_state_in_slots_is_guarded_without_python():
    module = model(lambda self, x: x * self.c.k if hasattr(self.c, "k") else x - 1, c=Slots())
    fast = staticrt.compile(module)
    x = torch.ones(3)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        before = fast._executor.fast.calls
        fast(x)
        assert fast._executor.fast.calls == before + 1
        module.c.k = 5.0
        assert fast(x).tolist() == [5.0] * 3
        del module.c.k
        assert fast(x).tolist() == [0.0] * 3
        module.c.k = 2.0
        assert fast(x).tolist() == [2.0] * 3


@pytest.mark.parametrize("gradients", [False, True])
def test_keyword_defaults_that_the_model_changes_itself(gradients):
    def scaled(x, *, scale=1.0):
        return x * scale

    def model(x):
        scaled.__kwdefaults__["scale"] += 1.0
        return scaled(x)

    compiled = staticrt.compile(model)
    for call in range(4):
        assert compiled(torch.ones(2, requires_grad=gradients)).tolist() == [2.0 + call] * 2
