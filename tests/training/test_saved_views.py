"""Saved values that are views of a result or an input with another dtype, or read as its conjugate or negative."""

import itertools

import pytest
import torch


def conjugate_of_a_saved_value(x, w):
    y = x * 2
    return (y @ w).abs(), torch.angle(y[:2] + 0.1).cos(), y.conj(), y.real


def real_view_of_a_saved_value(x, w):
    y = x * 2
    return y.conj(), torch.view_as_real(y).sin().sum(-1), y.real.exp(), y.imag


def complex_view_of_a_saved_value(x, w):
    y = torch.view_as_real(x) * 2
    z = torch.view_as_complex(y)
    return y.select(-1, 0), z.abs(), (z * z).real, y


def negative_of_a_saved_value(x, w):
    y = x * 2
    imag = y.conj().imag
    return y.conj(), imag * imag, imag, y.real.exp()


FUNCTIONS = [
    conjugate_of_a_saved_value,
    real_view_of_a_saved_value,
    complex_view_of_a_saved_value,
    negative_of_a_saved_value,
]


def loss(results):
    return sum((y.abs() if y.is_complex() else y).square().mean() for y in results)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients_are_eagers(compiler, function):
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, dtype=torch.cfloat), torch.randn(6, 3, dtype=torch.cfloat)
    run = compiler(function)
    for read in ([0], [1], [2], [3], [0, 1, 2, 3]):
        found = []
        for f in (run, function):
            args = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            results = f(*args)
            found.append(torch.autograd.grad(loss(results[i] for i in read), args, allow_unused=True))
        torch.testing.assert_close(found[0], found[1])


def views_of_a_spectrum(x):
    y = torch.fft.fft(x)
    return y.conj(), torch.view_as_real(y).sin().sum(-1), y.imag


def views_of_a_sum(x):
    y = torch.cumsum(x, 0)
    return y[1:], y.sin().sum(-1), y[:, 1:]


@pytest.mark.parametrize("function", [views_of_a_spectrum, views_of_a_sum], ids=lambda f: f.__name__)
def test_a_write_to_a_result_is_noticed(compiler, function):
    run = compiler(function)
    for f in (run, run, function):
        results = f(torch.randn(4, 6, dtype=torch.cfloat, requires_grad=True))
        with torch.no_grad():
            results[0].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss(results).backward()


def _result_and_size(x):
    a = x * 2
    return a.index_select(0, a.reshape(-1).long().clamp(0, 0)), a, a.abs().sum()


@pytest.mark.parametrize("node", ["auto", "aot"])
@pytest.mark.parametrize("used", [0, 2])
def test_a_written_result_is_an_error_only_if_the_backward_reads_it(node, used):
    """Only `abs` saves what is written: its gradient raises, as in eager, the other one does not.

    The second size makes the sizes symbolic: the region saves them too.
    """
    compiled = torch.compile(_result_and_size, backend="staticrt", options={"backward_node": node})
    found = []
    for function, size in itertools.product((_result_and_size, compiled, compiled), (2, 4)):
        x = torch.ones(size, 2, requires_grad=True)
        results = function(x)
        results[1].add_(1)
        try:
            found.append(torch.autograd.grad(results[used].sum(), x)[0].tolist())
        except RuntimeError as error:
            found.append("modified by an inplace operation" in str(error))
    assert found == found[:2] * 3
    assert (found[0] is True) == (used == 2)
