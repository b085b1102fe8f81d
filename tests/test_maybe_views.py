"""`reshape`, `flatten` and `contiguous` give views for some sizes and layouts: writes show where they do."""

import pytest
import torch
from torch import nn

import staticrt


def strided(rows, columns):
    return torch.randn(columns, rows).t()


def spread(rows, columns):
    return torch.randn(rows, 2 * columns)[:, ::2]


def odd(rows, columns):
    return torch.randn(rows, columns + 3)[:, :columns]


def add_to_reshaped(x):
    x.reshape(-1, x.shape[1]).add_(1)
    return x * 2


def add_to_flat(x):
    y = x * 1
    y[:, ::2].flatten().sigmoid_()
    return y


def add_to_source(x):
    y = x + 1
    turned = y.t()
    flat = turned.reshape(-1)
    y.mul_(3)
    return flat + 1


def add_to_contiguous(x):
    x.t().contiguous().add_(1)
    return x * 2


def return_both(x):
    y = x + 1
    flat = y.t().flatten()
    flat[:2] += 5
    return y, flat


def chain(x):
    y = x * 2
    y.t().reshape(y.shape[1], -1).contiguous().t().mul_(4)
    return y


WRITES = [add_to_reshaped, add_to_flat, add_to_source, add_to_contiguous, return_both, chain]


@pytest.mark.parametrize("make", [strided, spread, odd])
@pytest.mark.parametrize("function", WRITES, ids=lambda f: f.__name__)
def test_writes_show_where_eager_made_a_view(function, make):
    torch.manual_seed(0)
    for sizes in ([(5, 4), (3, 6), (1, 4), (5, 1)], [(1, 4), (5, 4), (5, 1)]):
        fast = staticrt.compile(function)
        for rows, columns in sizes * 2:
            x = make(rows, columns)
            other = torch.empty_strided(x.shape, x.stride()).copy_(x)
            torch.testing.assert_close(fast(other), function(x))
            torch.testing.assert_close(other, x)


def test_a_write_that_nobody_else_sees_needs_no_constant_sizes():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(8, 8)

        def forward(self, x):
            heads = x.unflatten(2, (2, 4)).transpose(1, 2).relu()
            joined = heads.transpose(1, 2).reshape(x.shape[0], x.shape[1], 8)
            joined.add_(1)
            return torch.relu_(self.out(joined).flatten(1))

    net = Heads().eval()
    fast = staticrt.compile(net)
    with torch.no_grad():
        for batch, length in [(2, 3), (4, 5), (3, 7), (2, 1), (1, 2)]:
            x = torch.randn(batch, length, 8)
            torch.testing.assert_close(fast(x), net(x))
    assert len(fast.explain().captures) <= 2


def test_a_strided_copy_is_stored_before_its_source_is_written_over():
    """sigmoid takes the bytes of flip's result, which the copy into x's layout still has to be made of."""

    def turn(x):
        x.copy_(x.flip(-1))
        return torch.sigmoid(x).cumsum(0)

    fast = staticrt.compile(turn)
    for _ in range(3):
        x = torch.randn(3, 5, 16)[..., :8]
        other = torch.empty_strided(x.shape, x.stride()).copy_(x)
        torch.testing.assert_close(fast(other), turn(x))
        torch.testing.assert_close(other, x)
