"""Modules and callables whose classes answer for attributes themselves, or have no `forward` of their own."""

import pytest
import torch
from torch import nn

import staticrt


class Settings:
    """Raises KeyError, not AttributeError, for what it does not have."""

    def __init__(self):
        self.table = {"scale": 2.0}

    def __getattr__(self, name):
        return self.__dict__["table"][name]

    def __call__(self, x):
        return x * self.scale


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.table = {"scale": 2.0}

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return self.table[name]

    def forward(self, x):
        return self.linear(x) * self.scale


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("kind", [Settings, Layer])
def test_names_that_a_class_computes(kind, gradients):
    model = kind()
    fast = staticrt.compile(model)
    for scale in (2.0, 3.0):
        model.table["scale"] = scale
        for size in (2, 3, 2):
            x = torch.ones(size, 2, requires_grad=gradients)
            torch.testing.assert_close(fast(x), model(x))
    assert fast.explain().traces


def test_a_step_that_computes_its_names():
    step = staticrt.compile_step(Settings())
    for _ in range(3):
        assert step(torch.ones(2)).tolist() == [2, 2]


class Named(Settings):
    """It doubles."""

    def __init__(self):
        super().__init__()
        self.__qualname__ = "Named.doubled"

    @property
    def __name__(self):
        return "doubled"


@pytest.mark.parametrize("compiled", [staticrt.compile, staticrt.compile_step])
def test_what_an_object_is_called_is_kept(compiled):
    fast = compiled(Named())
    assert (fast.__name__, fast.__qualname__) == ("doubled", "Named.doubled")
    assert fast.__doc__ == "It doubles."
    assert "doubled" in repr(fast)
    unnamed = compiled(Settings())
    assert not hasattr(unnamed, "__name__")
    assert "Settings" in repr(unnamed)


class Anything(nn.Module):
    """Has every attribute."""

    def __getattr__(self, name):
        return super().__getattr__(name) if name.startswith("_") else "yes"

    def forward(self, *inputs):
        return torch.stack(inputs).sum(0) * 2


def test_a_module_that_has_every_attribute():
    fast = staticrt.compile(Anything())
    for count in (1, 2, 2):
        assert fast(*[torch.ones(2)] * count).tolist() == [2 * count] * 2


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 2))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_torchscript(make, gradients):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    scripted = make(model)
    fast = staticrt.compile(scripted)
    assert fast.forward.__name__ == "forward"
    for size in (2, 3, 2):
        x = torch.ones(size, 2, requires_grad=gradients)
        torch.testing.assert_close(fast(x), model(x))
    with torch.no_grad():
        model[0].bias.add_(1)
    torch.testing.assert_close(fast(x), scripted(x))
