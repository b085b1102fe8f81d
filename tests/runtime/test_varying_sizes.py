"""Sizes that never repeat: the calls stay right, and one warning says what varies and what to do."""

import warnings

import pytest
import torch

import staticrt


def model(x, y):
    return torch.tanh(x @ y).sum(0)


def test_sizes_that_never_repeat_are_named_once():
    fast = staticrt.compile(model)
    y = torch.randn(4, 4)

    @torch.no_grad()
    def run():
        for n in range(3, 100):
            x = torch.randn(n, 4)
            torch.testing.assert_close(fast(x, y), model(x, y))

    with pytest.warns(UserWarning, match=r"x dim 0 \(3 to 66\).*buckets") as caught:
        run()
    assert len(caught) == 1
    assert "y dim" not in str(caught[0].message)


def test_sizes_that_repeat_are_fine():
    fast = staticrt.compile(model)
    y = torch.randn(4, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in [2, 3, 5, 8] * 40:
            fast(torch.randn(n, 4), y)
