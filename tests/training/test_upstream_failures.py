"""What AOTAutograd gets wrong and TorchScript's executor or eager gets right (F1 to F5, F7 of docs/design/training.md): right here."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

BUDGETS = [1.0, 0.5, 0.1, 0.0]


def _net():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def test_orders_one_to_three(compiler):
    compiled = compiler(lambda w: (w**3).sum())
    w = torch.randn(5, 7, requires_grad=True)
    for _call in range(3):
        (first,) = torch.autograd.grad(compiled(w), w, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), w, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), w)
        torch.testing.assert_close(first, 3 * w**2)
        torch.testing.assert_close(second, 6 * w)
        torch.testing.assert_close(third, torch.full_like(w, 6.0))


def test_gradient_penalty(compiler):
    net, x = _net(), torch.randn(8, 64)
    theirs, compiled = copy.deepcopy(net), compiler(net)
    for run in (compiled, theirs):
        inputs = x.clone().requires_grad_()
        out = run(inputs)
        (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        (out.square().mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    for mine, other in zip(net.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_second_order_through_two_regions_and_eager_code_between(compiler):
    first, second = compiler(lambda x: x.sin() * x), compiler(lambda x, y: (x * y.exp()).sum())
    results = []
    for f, g in ((first, second), (lambda x: x.sin() * x, lambda x, y: (x * y.exp()).sum())):
        x = torch.linspace(-1, 1, 12).requires_grad_()
        hidden = f(x)
        (slope,) = torch.autograd.grad(g(hidden.cos(), x), x, create_graph=True)
        (again,) = torch.autograd.grad(slope.square().sum(), x)
        results.append((slope.detach(), again))
    torch.testing.assert_close(*results)


def test_second_order_when_an_input_depends_on_another(compiler):
    """x enters the region directly and through y = 2x; each path counts once."""
    compiled = compiler(lambda x, y: (x * x * y).sum())
    x = torch.randn(6, requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(x, 2 * x), x, create_graph=True)
    torch.testing.assert_close(slope, 6 * x**2)
    (again,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(again, 12 * x)


def test_second_order_with_dropout_uses_the_same_mask(compiler):
    compiled = compiler(lambda x: F.dropout(x**3, 0.5))
    x = torch.randn(200, requires_grad=True)
    out = compiled(x)
    mask = (out.detach() != 0) * 2.0
    state = torch.get_rng_state()
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(slope, mask * 3 * x**2)
    assert torch.equal(state, torch.get_rng_state())
    (again,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(again, mask * 6 * x)


def test_second_order_with_a_written_buffer(compiler):
    def function(w, buf):
        out = (buf.sin() * w**3).sum()
        buf.add_(1)
        return out

    w, buf = torch.randn(9, requires_grad=True), torch.randn(9)
    scale = buf.sin()
    (slope,) = torch.autograd.grad(compiler(function)(w, buf), w, create_graph=True)
    kept = buf.clone()
    (again,) = torch.autograd.grad(slope.sum(), w)
    torch.testing.assert_close(again, scale * 6 * w)
    assert torch.equal(buf, kept)  # the region's second run writes nothing


def test_second_order_after_an_input_was_edited_says_so(compiler):
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    out = compiler(lambda x, w: (x * w**3).sum())(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, w, create_graph=True)


def test_graph_kept_after_one_that_was_not(compiler):
    net, x = _net(), torch.randn(3, 64)
    compiled = compiler(net)
    compiled(x).sum().backward()
    once = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    total = compiled(x).sum()
    for _time in range(3):
        total.backward(retain_graph=True)
    total.backward()
    for p, grad in zip(net.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 4 * grad)
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


@pytest.mark.parametrize("budget", BUDGETS)
def test_dropout(compiler, budget):
    compiled = compiler(lambda x, w: F.dropout(torch.tanh(x @ w), 0.5), activation_memory_budget=budget)
    x, w, g = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    for _call in range(3):
        y = compiled(x, w)
        (grad,) = torch.autograd.grad(y, w, g)
        want = x.T @ (g * 2 * (y != 0) * (1 - torch.tanh(x @ w) ** 2))
        torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("budget", BUDGETS)
def test_read_before_write(compiler, against_eager, budget):
    def function(x, w, buf):
        a = torch.sin(buf) * torch.tanh(x @ w)
        buf.add_(1)
        return a * a

    def inputs(_call):
        return torch.randn(64, 64), torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)

    against_eager(function, inputs, activation_memory_budget=budget, atol=1e-3)


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_read_through_a_view_before_a_write(against_eager, budget):
    def function(x, w, buf):
        a = buf.t().sin() * torch.tanh(x @ w)
        buf.add_(1)
        return a * a

    def inputs(_call):
        return torch.randn(64, 64), torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)

    against_eager(function, inputs, activation_memory_budget=budget, atol=1e-3)


def test_buffer_edited_between_forward_and_backward(compiler):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))
            self.register_buffer("scale", torch.randn(8))

        def forward(self, x):
            return x * self.scale.sin() * self.weight.tanh()

    net, x = Scaled(), torch.randn(8)
    out = compiler(net, activation_memory_budget=0.0)(x)
    want = x * net.scale.sin() * (1 - net.weight.detach().tanh() ** 2)
    net.scale.add_(1)
    out.sum().backward()
    torch.testing.assert_close(net.weight.grad, want)


@pytest.mark.parametrize("budget", BUDGETS)
def test_batch_norm(against_eager, budget):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    )
    against_eager(
        net,
        lambda call: (torch.randn(4 + call, 3, 12, 12, requires_grad=True),),
        activation_memory_budget=budget,
        rtol=1e-3,
        atol=1e-3,
    )
    assert net[1].num_batches_tracked == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda w: w.exp() * 2,
        lambda w: (w * 3).sigmoid().tanh(),
        lambda w: w.view(8, 8).t().exp() * 2,
        lambda w: w.view(8, 8).exp() * w.view(8, 8)[0].detach().exp(),
        lambda w: w[:32].exp() * w[32:].detach().sigmoid(),
    ],
)
def test_an_input_that_eager_does_not_save_may_be_written_before_the_backward(compiler, function):
    """Upstream saves the parameter and computes its exp again; an optimiser's step between the two then raises."""
    compiled = compiler(function)
    gradients = []
    for run in (compiled, function):
        torch.manual_seed(0)
        w = torch.randn(64, requires_grad=True)
        loss = run(w).sum()
        with torch.no_grad():
            w.add_(1)
        loss.backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)
