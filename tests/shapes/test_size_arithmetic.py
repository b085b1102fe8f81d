"""Where arithmetic on sizes or numbers fails in a trace, eager answers or raises its own error."""

import pytest
import torch

import staticrt
from staticrt.training import optim


def answer(function, *args):
    """What a call gives, or the type of its error."""
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def assert_same(ours, eager):
    assert isinstance(ours, torch.Tensor) == isinstance(eager, torch.Tensor), (ours, eager)
    if isinstance(eager, torch.Tensor):
        torch.testing.assert_close(ours, eager, equal_nan=True)
    else:
        assert ours is eager


SPREADS = {
    "std": lambda x: x.std(0),
    "var of a part": lambda x: (x * 2)[1:].var(0),
    "var_mean": lambda x: torch.var_mean(x, 0)[0],
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SPREADS)
def test_a_derivative_formula_divides_by_zero(name, dynamic):
    function = SPREADS[name]
    compiled = staticrt.compile(function, dynamic=dynamic)
    for batch in (4, 3, 2, 1, 2, 1, 5):
        x = torch.randn(batch, 3, requires_grad=True)
        eager = function(x)
        (wanted,) = torch.autograd.grad(eager.sum(), x)
        ours = compiled(x)
        assert_same(ours, eager)
        assert_same(torch.autograd.grad(ours.sum(), x)[0], wanted)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_derivative_formula_divides_by_zero_in_a_whole_step():
    def make():
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3)
        optimizer = optim.SGD(layer.parameters(), lr=0.1)

        def step(x):
            loss = layer(x).std(0).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, layer

    (eager, reference), (step, layer) = make(), make()
    compiled = staticrt.compile_step(step)
    for batch in (4, 3, 5, 1):
        x = torch.randn(batch, 3)
        assert_same(compiled(x), eager(x))
    assert reference.bias.isnan().all()
    assert_same(layer.bias, reference.bias)


NUMBERS = {
    "quotient": lambda x, k: x * (6 // k),
    "fraction": lambda x, k: x * (1.0 / k),
    "power": lambda x, k: x * (x.shape[0] * 0 + k) ** (-x.shape[0]),
    "large": lambda x, k: x * k**70,
    "after a draw": lambda x, k: torch.rand(3) + x * (6 // k),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_eager_raises_its_own_error(name, gradients):
    function = NUMBERS[name]
    compiled = staticrt.compile(function)
    for k in (3, 4, 5, 0, 6, 0):
        x = torch.ones(3, requires_grad=gradients)
        torch.manual_seed(0)
        eager, next_eager = answer(function, x, k), torch.rand(1)
        torch.manual_seed(0)
        assert_same(answer(compiled, x, k), eager)
        torch.testing.assert_close(torch.rand(1), next_eager)
