"""Losses that torch computes in the output that it is given: no warning of a resized output, and eager's answer."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import staticrt

LOSSES = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss, F.binary_cross_entropy]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_no_output_is_resized_with_a_warning(loss, reduction):
    def returned(x, y):
        return loss(x, y, reduction=reduction)

    def in_the_arena(x, y):
        return loss(x, y, reduction=reduction) * 2

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for function in (returned, in_the_arena):
            compiled = staticrt.compile(function)
            for rows in (4, 4, 1, 6):
                x, y = torch.rand(rows, 8), torch.rand(rows, 8).round()
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    got = compiled(x, y)
                want = function(x, y)
                torch.testing.assert_close(got, want)
                assert got.stride() == want.stride()
    finally:
        torch.set_warn_always(always)
