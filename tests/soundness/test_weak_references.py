"""Weak references: a trace keeps nothing alive that a model reaches by them alone."""

import types
import weakref

import pytest
import torch
from torch import nn

import staticrt


class _Config:
    def __init__(self, scale):
        self.scale = scale

    def scaled(self, x):
        return x * self.scale


def _reference(config):
    found = weakref.ref(config)
    return lambda x: x * found().scale if found() is not None else x - 5


def _method(config):
    found = weakref.WeakMethod(config.scaled)
    return lambda x: x - 5 if found() is None else found()(x)


def _values(config):
    found = weakref.WeakValueDictionary(a=config)
    return lambda x: x * (1 + sum(each.scale for each in found.values()))


def _keys(config):
    found = weakref.WeakKeyDictionary({config: 2.0})
    return lambda x: x * (1 + sum(found.values()))


def _set(config):
    found = weakref.WeakSet([config])
    return lambda x: x * (1 + len(found))


class _Slots:
    __slots__ = ("__weakref__", "scale")

    def __init__(self, scale):
        self.scale = scale


class _List(list):
    scale = 1.0

    def __init__(self, scale):
        self.scale = scale


def _layer(scale):
    layer = nn.Module()
    layer.scale = scale
    return layer


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        *((make, _Config) for make in (_reference, _method, _values, _keys, _set)),
        *((_reference, kind) for kind in (_Slots, _List, _layer)),
    ],
)
def test_what_goes_is_gone_in_the_next_call(make, kind):
    configs = [kind(2.0)]
    model = make(configs[0])
    fast = staticrt.compile(model)
    x = torch.ones(2)
    with torch.no_grad():
        for scale in (2.0, 2.0, 3.0):
            configs[0].scale = scale
            assert fast(x).tolist() == model(x).tolist()
        while_alive = fast(x).tolist()
        gone = weakref.ref(configs.pop())
        assert gone() is None
        for _ in range(2):
            assert fast(x).tolist() == model(x).tolist() != while_alive


def test_what_goes_is_gone_where_the_model_runs_in_parts():
    configs = [_Config(2.0)]
    read = _reference(configs[0])

    def model(x):
        print(end="")
        return read(x)

    fast = staticrt.compile(model)
    x = torch.ones(2)
    with torch.no_grad():
        for _ in range(2):
            assert fast(x).tolist() == [2.0, 2.0]
        gone = weakref.ref(configs.pop())
        assert gone() is None
        assert fast(x).tolist() == [-4.0, -4.0]


def test_what_the_model_holds_itself_is_traced_whole():
    """Modules refer to their parents, and recurrent layers to their weights, by weak references."""

    class Child(nn.Module):
        def __init__(self, parent):
            super().__init__()
            self.parent = weakref.ref(parent)

        def forward(self, x):
            return x * self.parent().scale

    parent = nn.Module()
    parent.scale = 2.0
    parent.child = Child(parent)
    parent.unread = types.SimpleNamespace(other=weakref.ref(_reference))
    parent.forward = lambda x: parent.child(x)
    layer = nn.LSTM(2, 2)
    for model, x in ((parent, torch.ones(2)), (layer, torch.ones(1, 1, 2))):
        fast = staticrt.compile(model)
        with torch.no_grad():
            fast(x)
        assert [trace.route for trace in fast.explain().traces] == ["whole"]
    parent.scale = 3.0
    with torch.no_grad():
        fast = staticrt.compile(parent)
        assert fast(torch.ones(2)).tolist() == [3.0, 3.0]
        parent.scale = 4.0
        assert fast(torch.ones(2)).tolist() == [4.0, 4.0]


def test_what_code_does_not_name_may_go():
    model = nn.Linear(2, 2)
    config = _Config(1.0)
    model.owner = weakref.ref(config)
    fast = staticrt.compile(model)
    x = torch.ones(1, 2)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        del config
        assert model.owner() is None
        torch.testing.assert_close(fast(x), model(x))
    assert {trace.route for trace in fast.explain().traces} == {"whole"}


@pytest.mark.parametrize("name", ["read", "unread"])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_the_model_drops_is_gone(name, gradients):
    class Model(nn.Module):
        read = None

        def forward(self, x):
            x = x if self.read is None else x * 1
            return x - 5 if self.found() is None else x * self.found().scale

    def hold(scale):
        setattr(model, name, _Config(scale))
        return getattr(model, name)

    model = Model()
    model.found = weakref.ref(hold(2.0))
    fast = staticrt.compile(model)
    x = torch.ones(2, requires_grad=gradients)
    assert fast(x).tolist() == [2.0, 2.0]
    hold(3.0)
    assert fast(x).tolist() == [-4.0, -4.0]
    model.found = weakref.ref(hold(4.0))
    assert fast(x).tolist() == [4.0, 4.0]
    assert {trace.route for trace in fast.explain().traces} == {"training" if gradients else "whole"}
