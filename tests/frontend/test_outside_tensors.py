"""Tensors that a model reaches by Python (globals, closures, attributes) are read live: writes between calls are seen."""

import pytest
import torch
from torch import nn

import staticrt

GLOBAL = torch.randn(4, 4)


class Plain:
    """An object that holds a tensor and another object."""

    def __init__(self, **values):
        self.__dict__.update(values)


def of_global():
    return (lambda x: x @ GLOBAL.exp()), GLOBAL


def of_closure():
    weight = torch.randn(4, 4)
    return (lambda x: x @ weight.exp()), weight


def of_dict():
    table = {"weights": [torch.randn(4, 4)]}
    return (lambda x: x @ table["weights"][0].exp()), table["weights"][0]


def of_object():
    holder = Plain(inner=Plain(weight=torch.randn(4, 4)))
    return (lambda x: x @ holder.inner.weight.exp()), holder.inner.weight


def of_attribute():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = [torch.randn(4, 4)]  # neither parameter nor buffer

        def forward(self, x):
            return x @ self.table[0].exp()

    model = Model()
    return model, model.table[0]


def of_array():
    weight = torch.randn(4, 4)
    array = weight.numpy()
    return (lambda x: x @ torch.from_numpy(array).exp()), weight


def of_view():
    weight = torch.randn(8, 4)
    half = weight[4:]
    return (lambda x: x @ half.exp()), weight


def of_number():
    scale = torch.tensor(2.0)
    return (lambda x: torch.relu(x) * (scale + 1) - scale), scale


SOURCES = [of_global, of_closure, of_dict, of_object, of_attribute, of_array, of_view, of_number]
WRITES = {
    "mul_": lambda tensor: tensor.mul_(2),
    "copy_": lambda tensor: tensor.copy_(torch.randn(tensor.shape)),
    "part": lambda tensor: tensor.view(-1)[-1:].add_(1),
    "numpy": lambda tensor: tensor.numpy().fill(0.5),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_write_is_seen(source, write):
    function, tensor = source()
    compiled = staticrt.compile(function)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            torch.testing.assert_close(compiled(x), function(x))
        for _ in range(2):
            WRITES[write](tensor)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), function(x))
    report = compiled.explain()
    assert {trace.route for trace in report.traces} == {"whole"}
    assert not report.eager
    # Python may read an array's numbers, so their change makes another trace.
    assert len(report.traces) == 1 or source is of_array


def test_literals_are_still_folded():
    compiled = staticrt.compile(lambda x: x * torch.tensor([1.0, 2.0]).exp().sum())
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(3))
    assert "aten.exp" not in str(compiled.explain())


def test_a_literal_in_a_branch_is_its_own():
    compiled = staticrt.compile(
        lambda x: torch.cond(
            x.sum() > 0, lambda x: x * torch.tensor(2.0), lambda x: x - torch.tensor(3.0), (x,)
        )
    )
    with torch.no_grad():
        for sign in (1, -1, 1, -1):
            x = torch.rand(3) * sign
            torch.testing.assert_close(compiled(x), x * 2 if sign > 0 else x - 3)
