"""What is saved where a region writes an input, at every activation budget: gradients are eager's."""

import pytest
import torch
import torch.nn.functional as F

BUDGETS = [1.0, 0.5, 0.1, 0.0]


def _exp_before_a_write(x, w):
    """Eager saves exp(x), not x."""
    a = x.exp().sin() * w
    x.add_(1)
    return a * x


def _views_before_a_write(x, w):
    a = x.t().exp().cos().t() * w
    x.mul_(w)
    return a.tanh() + x


def _result_of_a_write(x, w):
    a = (x.exp() * w).tanh()
    x.copy_(a * 2)
    return a * a, x.exp()


def _dropped_and_written(x, w):
    a = F.dropout((x.exp() * w).tanh(), 0.5)
    b = F.dropout(a.exp(), 0.3) * a
    x.mul_(2)
    return b * w


FUNCTIONS = [_exp_before_a_write, _views_before_a_write, _result_of_a_write, _dropped_and_written]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_an_input_with_a_history_is_written(compiler, function, budget):
    _compare(compiler(function, activation_memory_budget=budget), function, lambda leaf: leaf * 1)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_an_input_without_a_gradient_is_written(compiler, function, budget):
    _compare(
        compiler(function, activation_memory_budget=budget), function, lambda leaf: leaf.detach().clone()
    )


def _compare(compiled, function, prepare):
    found = []
    for run in (compiled, function):
        torch.manual_seed(3)
        leaf, w = torch.randn(12, 12, requires_grad=True), torch.randn(12, 12, requires_grad=True)
        x = prepare(leaf)
        torch.manual_seed(4)
        out = run(x, w)
        total = sum(o.square().sum() for o in torch.utils._pytree.tree_leaves(out)) + x.sum()
        total.backward()
        found.append((out, x.detach(), leaf.grad, w.grad))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
