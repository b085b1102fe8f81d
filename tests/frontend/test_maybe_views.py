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


def return_flat(x):
    return x.flatten(0, 1)


def return_joined(x):
    return x.transpose(0, 1).reshape(x.shape[1], -1), x.sum()


def return_source_and_copy(x):
    y = x * 2
    return y, y.transpose(1, 2).contiguous()


def of_one(shape):
    """Row-major the other way round, whose dimensions of size 1 have strides of their own."""
    return torch.randn(shape[::-1]).permute(2, 1, 0)


@pytest.mark.parametrize("make", [torch.randn, of_one], ids=["rows", "turned"])
@pytest.mark.parametrize("function", [return_flat, return_joined, return_source_and_copy])
def test_results_share_memory_where_eager_makes_views(function, make):
    fast = staticrt.compile(function)
    for shape in [(4, 1, 3), (2, 3, 4), (1, 5, 2), (6, 1, 2), (3, 4, 1), (5, 2, 3)] * 2:
        x, other = make(shape), make(shape)
        for given, run in ((x, function), (other, fast)):
            given.fill_(1)
            results = run(given)
            results = results if isinstance(results, tuple) else (results,)
            results[-1].add_(1)  # the caller's write, seen through what shares its memory
            results[0].mul_(3)
            if run is function:
                expected = [r.clone() for r in results]
        torch.testing.assert_close(list(results), expected)
        torch.testing.assert_close(other, x)


def test_a_copy_needs_no_constant_sizes():
    fast = staticrt.compile(return_source_and_copy)
    for shape in [(4, 2, 3), (2, 3, 4), (6, 5, 2)]:
        x = torch.randn(shape)
        torch.testing.assert_close(fast(x), return_source_and_copy(x))
    assert len(fast.explain().traces) == 1


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
    assert len(fast.explain().traces) <= 2


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


TURNED = {
    "masked_fill_": lambda y: y.masked_fill_(y > 0, 1.0),
    "scatter_": lambda y: y.scatter_(0, torch.zeros(1, 5).long(), 2.0),
    "triu_": lambda y: y.triu_(),
    "cumsum_": lambda y: y.cumsum_(0),
    "index_add_": lambda y: y.index_add_(0, torch.tensor([0]), y[-1:] * 1),
    "of a slice": lambda y: y[1:].masked_fill_(y[1:] > 0, 1.0),
}


@pytest.mark.parametrize("name", TURNED)
def test_memory_keeps_its_layout_when_it_is_written_through_a_view(name):
    def write(x):
        y = x * 1
        TURNED[name](y.t())
        return y, y.view(-1) + 1

    fast = staticrt.compile(write)
    for rows in (5, 5, 5):
        x = torch.randn(rows, 8)
        for expected, got in zip(write(x), fast(x), strict=True):
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected)
    assert not fast.explain().eager


def channels_last(n, m):
    return torch.randn(n, 2, m, 2).contiguous(memory_format=torch.channels_last)


def heads(n, m):
    return torch.randn(2, n, m, 3).transpose(1, 2)


@pytest.mark.parametrize("make", [channels_last, heads])
@pytest.mark.parametrize("sizes", [((3, 4), (1, 1), (1, 4), (3, 1)), ((1, 1), (3, 4)), ((2, 1), (1, 1))])
@pytest.mark.parametrize(
    "model",
    [
        lambda x: x.reshape(-1, x.shape[-1]),
        lambda x: x.reshape(-1, x.shape[-1]) * 2,
        lambda x: x.flatten(2).relu().view(x.shape[0], x.shape[1], -1),
        lambda x: x.reshape(x.shape[0], -1)[:, 1:].abs(),
    ],
)
def test_the_strides_of_a_view_reach_results(model, sizes, make):
    compiled = staticrt.compile(model)
    for size in sizes:
        for _ in range(2):
            x = make(*size)
            want, got = model(x), compiled(x)
            torch.testing.assert_close(got, want)
            lengths = [n > 1 for n in want.shape]
            assert [a for a, n in zip(got.stride(), lengths, strict=True) if n] == [
                a for a, n in zip(want.stride(), lengths, strict=True) if n
            ], size
            assert (got.data_ptr() == x.data_ptr()) == (want.data_ptr() == x.data_ptr()), size


def test_a_layer_in_between_leaves_one_trace_for_all_sizes():
    """Its result is contiguous, whether what it reads is a view or a copy."""
    layer = nn.Linear(2, 2)
    compiled = staticrt.compile(lambda x: layer(x.reshape(-1, x.shape[-1])) + 1)
    with torch.no_grad():
        for size in ((1, 1), (3, 4), (2, 2)):
            compiled(channels_last(*size))
    assert len(compiled.explain().traces) == 1
