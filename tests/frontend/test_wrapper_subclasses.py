"""Weights that are tensor subclasses (as quantisation libraries make them), through both entry points."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

import staticrt


class Int8Weight(torch.Tensor):
    """A matrix of int8 with a scale per row."""

    @staticmethod
    def __new__(cls, values, scales):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scales.dtype)

    def __init__(self, values, scales):
        self.values, self.scales = values, scales

    def __tensor_flatten__(self):
        return ["values", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["values"], inner["scales"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def plain(value):
            return value.values.to(value.scales.dtype) * value.scales if isinstance(value, cls) else value

        if func is torch.ops.aten.detach.default:
            return return_and_correct_aliasing(func, args, kwargs or {}, cls(args[0].values, args[0].scales))
        return func(*[plain(arg) for arg in args], **(kwargs or {}))


def quantised(features, outputs):
    layer = nn.Linear(features, outputs)
    values = torch.randint(-127, 127, (outputs, features), dtype=torch.int8)
    layer.weight = nn.Parameter(Int8Weight(values, torch.rand(outputs, 1) * 0.01), requires_grad=False)
    return layer


def model():
    torch.manual_seed(0)
    return nn.Sequential(quantised(16, 24), nn.ReLU(), quantised(24, 8)).eval()


def by_compile(module):
    return staticrt.compile(module)


def by_backend(module):
    torch._dynamo.reset()
    return torch.compile(module, backend="staticrt", fullgraph=True)


@pytest.mark.parametrize("entry", [by_compile, by_backend])
def test_sizes_and_changed_weights(entry):
    module = model()
    compiled = entry(module)
    with torch.no_grad():
        for rows in (4, 4, 7, 4):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), module(x))
            module[0].weight.values.copy_(torch.randint(-127, 127, (24, 16), dtype=torch.int8))
        module[2].weight = nn.Parameter(
            Int8Weight(torch.ones(8, 24, dtype=torch.int8), torch.ones(8, 1)), requires_grad=False
        )
        torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("entry", [by_compile, by_backend])
def test_calls_are_one_program(entry):
    compiled = entry(model())
    x = torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        with torch.profiler.profile() as profile:
            compiled(x)
    names = {event.key for event in profile.key_averages()}
    assert not {"aten::t", "aten::linear", "aten::addmm"} & names  # what the subclass would ask torch for


@pytest.mark.parametrize("entry", [by_compile, by_backend])
def test_a_subclass_among_the_results(entry):
    module = quantised(16, 24)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x), self.inner.weight.detach()

    both = Both()
    compiled = entry(both)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 16)
            got, weight = compiled(x)
            torch.testing.assert_close(got, module(x))
            assert type(weight) is Int8Weight
            assert torch.equal(weight.values, module.weight.values)
