"""Writes to views that operators such as `squeeze_` change in place, and to windows: values and gradients are eager's."""

import pytest
import torch

import staticrt
from tests.support.compilers import each_compiler_for_gradients


def _written_view(x):
    base = x * 1
    view = base[0:].squeeze_()
    view[view > 1] = 0
    return base


def _written_base(x):
    base = x * 1
    view = base[0:]
    base.transpose_(1, 3)
    view.mul_(2)
    return base * 1, view * 1


def _written_windows(x):
    base = torch.cat([x.reshape(-1) * 1, x[0, 0, 0, :1]])
    base.unfold(0, 2, 2).mul_(2)
    return base


def _gets_gradients(x):
    base = torch.zeros(1, 2, 1, 2)
    base[0:].squeeze_().add_(x.reshape(2, 2))
    return base * 1


@each_compiler_for_gradients
@pytest.mark.parametrize("function", [_written_view, _written_base, _written_windows, _gets_gradients])
def test_a_write_after_a_view_changed_in_place(function, compiler):
    torch.compiler.reset()

    def trained(function):
        x = torch.arange(4.0).view(1, 2, 1, 2).requires_grad_()
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        sum((y * (y.detach() + 1)).sum() for y in results).backward()
        return [*results, x.grad]

    compiled = compiler(function)
    for _ in range(2):
        torch.testing.assert_close(trained(compiled), trained(function))


@pytest.mark.parametrize(
    "view", [lambda v: v.view(torch.int32), lambda v: v.unbind(0)[0].view(dtype=torch.int32)]
)
def test_writes_through_another_dtype_to_a_view_of_a_leaf(view, fresh_dynamo):
    def run(x):
        flat = x.view(-1)
        y = (x * 3).var(-1)
        y = y * y.sum().item()
        view(flat).bitwise_and_(-4)
        return y

    compiled = staticrt.compile(run)
    for rows in (2, 3):
        results = []
        for each in (compiled, run):
            x = torch.linspace(-1, 1, rows * 4).view(rows, 4).requires_grad_()
            y = each(x)
            results.append((y, *torch.autograd.grad(y.sum(), x), x))
        torch.testing.assert_close(*results)
    assert "a view has another dtype" in str(compiled.explain())
