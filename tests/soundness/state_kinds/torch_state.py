"""Torch's own state that a forward reads."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from tests.soundness.state_kinds.registry import kind, setter


class _Patched:
    """A patch of `unittest.mock` that each change replaces by another."""

    def __init__(self, target: str, by: Callable[..., Any] | None = None) -> None:
        self._target = target
        self._by = by
        self._stack = contextlib.ExitStack()

    def __call__(self, number: float) -> None:
        self._stack.close()
        if number > 1:
            by = self._by or (lambda x, *args, **kwargs: x * number)
            self._stack.enter_context(mock.patch(self._target, by))

    def restore(self) -> None:
        self._stack.close()


@kind
def function_of_torch_patched():
    return lambda x: F.relu(x), _Patched("torch.nn.functional.relu")


@kind
def operator_of_torch_patched():
    return lambda x: torch.exp(x), _Patched("torch.exp")


@kind
def method_of_tensor_patched():
    return lambda x: x.sigmoid(), _Patched("torch.Tensor.sigmoid")


@kind
def operator_of_tensor_patched():
    return lambda x: x + 1, _Patched("torch.Tensor.__add__")


@kind
def function_that_a_layer_calls_patched():
    layer = nn.GELU()
    return lambda x: layer(x), _Patched("torch.nn.functional.gelu")


@kind
def forward_of_layer_class_patched():
    layer = nn.ELU()
    return lambda x: layer(x), _Patched("torch.nn.ELU.forward", lambda self, x: x * 7)


@kind
def function_of_math_patched():
    import math

    return lambda x: x * math.sqrt(4.0), _Patched("math.sqrt")


@kind
def class_of_layer_swapped():
    layers = nn.Sequential(nn.Identity(), nn.ReLU())

    def change(number):
        layers[1].__class__ = nn.Tanh if type(layers[1]) is nn.ReLU else nn.ReLU
        layers[1].inplace = False

    return lambda x: layers(x - 1), change


@kind
def call_of_layer_class():
    class Layer(nn.Module):
        def forward(self, x):
            return x * 2

    layer = Layer()

    def change(number):
        Layer.__call__ = lambda self, x: x * number

    return lambda x: layer(x), change


@kind
def forward_of_layer_object():
    layer = nn.ReLU()

    def change(number):
        layer.forward = lambda x: x * number

    return lambda x: layer(x), change


@kind
def layer_renamed():
    layers = nn.ModuleDict({"a": nn.Identity()})

    def change(number):
        (key,) = layers
        layers["b" if key == "a" else "a"] = layers.pop(key)

    return lambda x: layers["a"](x) if "a" in layers else x - 1, change


@kind
def layer_replaced():
    layers = nn.Sequential(nn.ReLU())

    def change(number):
        layers[0] = nn.Tanh() if type(layers[0]) is nn.ReLU else nn.ReLU()

    return lambda x: layers(x - 1), change


@kind
def layer_added():
    layers = nn.Sequential(nn.ReLU())
    return lambda x: layers(
        x
    ), lambda number: layers.append(nn.Sigmoid()) if len(layers) < 4 else layers.pop(1)


@kind
def hook_of_layer():
    layer = nn.ReLU()
    handles: list[Any] = []

    def change(number):
        while handles:
            handles.pop().remove()
        handles.append(layer.register_forward_hook(lambda _module, _args, out: out * number))

    return lambda x: layer(x), change


@kind
def training_of_layer():
    layer = nn.BatchNorm1d(4, affine=False)

    return lambda x: layer(x) * (2 if layer.training else 3), lambda number: layer.train(not layer.training)


@kind
def hyperparameter_of_layer():
    layer = nn.LeakyReLU(0.5)
    return lambda x: layer(x - 1), setter(layer, "negative_slope")


@kind
def attribute_of_parameter():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float32), requires_grad=False)
    weight.gain = 1.0
    return lambda x: x * weight * weight.gain, setter(weight, "gain")


@kind
def first_attribute_of_parameter():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float32), requires_grad=False)
    return lambda x: x * weight * getattr(weight, "gain", 1.0), setter(weight, "gain")


@kind
def gradient_of_parameter():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float32), requires_grad=False)

    def change(number):
        weight.grad = None if weight.grad is not None else torch.ones(4, dtype=torch.float32)

    return lambda x: x * (weight if weight.grad is None else 3), change


@kind
def parameter_replaced():
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.ones(4, dtype=torch.float32), requires_grad=False)

    def change(number):
        layer.weight = nn.Parameter(torch.full((4,), number, dtype=torch.float32), requires_grad=False)

    return lambda x: x * layer.weight, change


@kind
def parameter_written():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float32), requires_grad=False)
    return lambda x: x * weight, lambda number: weight.data.fill_(number)


@kind
def version_of_buffer():
    buffer = torch.ones(4, dtype=torch.float32)
    return lambda x: x * buffer._version, lambda number: buffer.add_(1)


@kind
def offset_of_tensor_in_storage():
    config = types.SimpleNamespace(part=torch.arange(8, dtype=torch.float32)[:4])

    def change(number):
        config.part = torch.arange(8, dtype=torch.float32)[random.Random(number).randrange(4) :][:4]

    return lambda x: x + config.part.storage_offset(), change


@kind
def sizes_of_unused_tensor():
    weight = torch.ones(4, 3)

    def change(number):
        weight.data = torch.ones(4, 1 + weight.shape[1] % 5)

    return lambda x: x * weight.shape[1], change


@kind
def gradients_wanted_of_unused_tensor():
    weight = torch.ones(4, dtype=torch.float32)
    return lambda x: x * (2 if weight.requires_grad else 3), lambda number: weight.requires_grad_(
        not weight.requires_grad
    )
