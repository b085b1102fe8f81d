"""Checkpoints whose function reads state that changes before their backward run eagerly, wherever the state lies."""

import collections
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt
from tests.support.against_eager import equal_eager


class _Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def forward(self, x):
        return (x * self.factor).sin()


class _Slots:
    __slots__ = ("factor",)

    def __call__(self, x):
        return (x * self.factor).sin()


class _Class:
    factor = 1.0


_LIBRARY = types.ModuleType("a_library_of_the_users")
_MODULE = _Module()


def _object_holder(held):
    def change(value):
        held.factor = value

    return (held if isinstance(held, (nn.Module, _Slots)) else lambda x: (x * held.factor).sin()), change


def _library():
    def change(value):
        _LIBRARY.factor = value

    return lambda x: (x * _LIBRARY.factor).sin(), change


def _inner_list():
    held = _Module()
    held.factors = [1.0]

    def change(value):
        held.factors[0] = value

    return lambda x: (held(x) * held.factors[0]).sin(), change


def _deque():
    held = collections.deque([1.0])

    def change(value):
        held[0] = value

    return lambda x: (x * held[0]).sin(), change


def _array():
    held = np.ones(1)

    def change(value):
        held[0] = value

    return lambda x: (x * float(held[0])).sin(), change


def _hook():
    held = [1.0]
    module = nn.Tanh()
    module.register_forward_hook(lambda _module, _inputs, out: out * held[0])

    def change(value):
        held[0] = value

    return module, change


def _iterator():
    numbers = iter(range(1, 100))
    return lambda x: (x * float(next(numbers))).sin(), lambda _value: None


HOLDERS = {
    "module": lambda: _object_holder(_Module()),
    "global module": lambda: _object_holder(_MODULE),
    "list of a module": _inner_list,
    "slots": lambda: _object_holder(_Slots()),
    "class": lambda: _object_holder(_Class),
    "library": _library,
    "deque": _deque,
    "array": _array,
    "hook": _hook,
    "iterator": _iterator,
}


@pytest.mark.filterwarnings("ignore:staticrt")
@pytest.mark.parametrize("way", ["step", "model"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_state_that_returns_to_its_value_after_the_forward(holder, way):
    def train(compile):
        part, change = HOLDERS[holder]()
        change(1.0)

        def forward(x):
            change(1.0)
            x = checkpoint(part, x, use_reentrant=False)
            change(3.0)
            return x

        run = compile(forward) if way == "model" else forward

        def step(x):
            run(x).square().sum().backward()
            gradient, x.grad = x.grad, None
            return gradient

        step = compile(step) if way == "step" else step
        found = []
        for _ in range(4):
            x = torch.linspace(0, 1, 8, dtype=torch.float64).view(2, 4).requires_grad_()
            found.append(step(x).clone())
        return found

    assert equal_eager(train, staticrt.compile_step if way == "step" else staticrt.compile).explain().eager


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_model_that_numbers_its_checkpoints():
    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.scale = 3.0

        def body(self, x):
            return (self.inner(x) * self.scale).sin()

        def forward(self, x):
            for scale in (1.0, 2.0, 3.0):
                self.scale = scale
                x = checkpoint(self.body, x, use_reentrant=False)
            return x

    def train(compile):
        run = compile(Numbered())
        found = []
        for _ in range(4):
            x = torch.ones(2, 4, requires_grad=True)
            run(x).sum().backward()
            found.append(x.grad)
        return found

    equal_eager(train, staticrt.compile)


def test_checkpoints_of_which_nothing_changes_are_traced():
    model = nn.Sequential(nn.Linear(4, 4), _Module(), nn.Dropout(0.0))
    model.held = {"numbers": [1, 2.5], "array": np.ones(3), "deque": collections.deque([1])}
    fast = staticrt.compile(lambda x: checkpoint(model, x, use_reentrant=False))
    for _ in range(3):
        x = torch.ones(2, 4, requires_grad=True)
        fast(x).sum().backward()
    assert not fast.explain().eager
