"""Sums, extremes and softmax of rows, which kernels compute in groups: as in eager for any length and any values."""

import pytest
import torch

import staticrt

LENGTHS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 255, 256, 257, 300)
ROWS = (1, 5, 16, 37)
OPERATORS = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
}
INFINITY, NAN = float("inf"), float("nan")


def compiled(name):
    return staticrt.compile(OPERATORS[name])


def check(fast, name, x):
    for _ in range(3):  # the general path, then the prepared one
        torch.testing.assert_close(fast(x), OPERATORS[name](x), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_any_number_of_rows_of_any_length(name):
    torch.manual_seed(0)
    fast = compiled(name)
    for length in LENGTHS:
        for rows in ROWS:
            check(fast, name, torch.randn(rows, length) * 4)


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_that_are_not_finite_stay_in_their_row(name):
    torch.manual_seed(0)
    fast = compiled(name)
    for length in (1, 3, 16, 20, 70, 300):
        x = torch.randn(40, length)
        for row, value in enumerate((INFINITY, -INFINITY, NAN, 1e38, -1e38, 1e-40)):
            x[2 * row, row % length] = value
            x[2 * row + 20] = value
        check(fast, name, x)


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_with_masked_elements(name):
    torch.manual_seed(0)
    fast = compiled(name)
    for length in (4, 24, 80):
        check(fast, name, torch.randn(33, length).masked_fill(torch.rand(33, length) > 0.6, -INFINITY))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_rows_result_does_not_depend_on_the_others(name):
    torch.manual_seed(0)
    fast = compiled(name)
    for length in (5, 16, 40):
        x = torch.randn(35, length)
        for _ in range(3):
            fast(x), fast(x[20:22])
        assert torch.equal(fast(x)[20:22], fast(x[20:22].clone()))
