"""Broadcast operands of short rows, which a tile gathers for one row, for a period of several, or once: as in eager."""

import pytest
import torch

import staticrt

# Of the whole and of the broadcast operand; one element repeats along rows, or rows along what is outside them.
SHAPES = [
    ((300, 2), (300, 1)),
    ((300, 7), (300, 1)),
    ((300, 16), (300, 1)),
    ((1000, 32), (1000, 1)),
    ((90, 48), (90, 1)),
    ((9, 130, 4), (130, 1)),
    ((77, 4, 16), (4, 1)),
    ((77, 4, 7, 5), (4, 1, 5)),
    ((33, 8, 4, 4), (8, 1, 1)),
    ((33, 3, 49), (3, 1)),
    ((40, 2, 3, 20), (2, 1, 20)),
    ((1000, 4, 128), (4, 1)),
    ((30, 16, 49), (16, 1)),  # a period longer than a tile holds
    ((2, 3, 1000, 2), (3, 1, 2)),
]


def combine(x, y):
    return torch.where(x > y, x + y, x - y), y - x


@pytest.mark.usefixtures("num_threads_stays")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8], ids=str
)
def test_broadcast_operands(dtype, threads):
    torch.manual_seed(0)
    fast = staticrt.compile(combine)
    torch.set_num_threads(threads)
    for whole, repeated in SHAPES:
        x, y = ((torch.randn(shape).abs() * 9).to(dtype) for shape in (whole, repeated))
        for _ in range(3):  # the general path, then the prepared one
            for got, want in zip(fast(x, y), combine(x, y), strict=True):
                assert torch.equal(got, want), (whole, repeated)
