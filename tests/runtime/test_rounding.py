"""Fused element-wise operators round to narrow dtypes as eager does, bit by bit."""

import itertools

import pytest
import torch

import staticrt


@pytest.mark.parametrize(
    ("first", "second"), [*itertools.permutations((torch.half, torch.bfloat16, torch.float), 2)]
)
def test_one_value_is_rounded_to_each_of_two_dtypes(first, second):
    """Rounded to bfloat16 after it was rounded to half, a value may differ."""

    def model(x):
        return x.to(first) + x.double(), x.to(second) * 2.5

    compiled = staticrt.compile(model)
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        with torch.no_grad():
            for got, expected in zip(compiled(x), model(x), strict=True):
                assert torch.equal(got, expected)
