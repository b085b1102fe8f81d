"""Sizes that data decides never stand for other sizes unless each call checks it."""

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true, statically_known_true

import staticrt
from tests.support.against_eager import check

arange = torch.arange


def test_data_decides_whether_a_size_is_broadcast():
    def f(x, y):
        z, w = x[x > 2.5], y * (y.shape[0] // 2)
        return z + w, w

    # all elements pass; one does and is broadcast; all pass again
    check(f, lambda: (arange(4.0) + 5, arange(4.0)), lambda: (arange(4.0), arange(4.0)), backend=False)
    check(f, lambda: (arange(4.0), arange(4.0)), lambda: (arange(6.0) + 5, arange(6.0)), backend=False)


def test_two_sizes_that_data_decides_are_added():
    def f(x, y):
        a, b = x.nonzero()[:, 0], y.nonzero()[:, 0]
        return a + b, a.shape[0] * 2, x.sum() * b.shape[0]

    sizes = [(4, 4), (4, 2), (2, 4), (4, 5), (5, 5)]
    check(f, *[lambda n=n, m=m: (arange(float(n)), arange(float(m))) for n, m in sizes], backend=False)


def test_a_checked_size_raises_where_it_does_not_hold():
    def f(x, y):
        z = torch.cat([x[x > 0], y])
        torch._check(z.shape[0] == 2 * y.shape[0])
        return z.view(2, -1) + y

    check(f, lambda: (arange(4.0) + 1, arange(4.0)), lambda: (arange(4.0), arange(4.0)), backend=False)


def test_a_number_that_data_decides_cuts_sizes():
    def f(x, n):
        k = int(n)
        return x[:k] + x.narrow(0, 0, k), torch.zeros(k) + x[: x.shape[0] // 2]

    calls = [(6, 3), (6, 1), (2, 1), (8, 4), (8, 2)]
    check(f, *[lambda n=n, k=k: (arange(float(n)), torch.tensor(k)) for n, k in calls], backend=False)


def test_repeats_that_add_up_to_another_size():
    def f(x, y):
        z = torch.repeat_interleave(x, y)
        return z[: x.shape[0]] + x, z.reshape(-1, 1) * z

    repeats = [[1, 1, 1, 1], [1, 2, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]]
    check(f, *[lambda r=r: (arange(4.0), torch.tensor(r)) for r in repeats], backend=False)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_dropout_draws_as_eager(p):
    check(lambda x: (torch.nn.functional.dropout(x, p), torch.rand(1)), lambda: (arange(12.0).view(3, 4),))


def test_a_view_of_an_image_whose_batch_is_one():
    # At batch 1 the view's strides say that it is row-major, and the convolution after it answers so.
    weight = torch.ones(8, 12, 1, 1)

    def f(x):
        n, _, h, w = x.shape
        q, k, v = x.reshape(n, 1, 36, h * w).permute(0, 1, 3, 2).chunk(3, dim=3)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        y = torch.nn.functional.conv2d(y.permute(0, 1, 3, 2).reshape(n, 12, h, w), weight)
        return y.reshape(n, 2, 4, h * w).permute(0, 1, 3, 2).reshape(n, -1)

    def image(n):
        return (arange(n * 36 * 49.0) % 5).view(n, 36, 7, 7).to(memory_format=torch.channels_last)

    for batches in ((1, 2, 1), (2, 1)):
        fast = staticrt.compile(f)
        for n in batches:
            with torch.no_grad():
                expected = f(image(n))
                got = fast(image(n))
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()


def test_integers_beyond_64_bits():
    products = [lambda x, n: x / (n * n), lambda x, n: (x * 2, n * n), lambda x, n: x + n**3 % 7]
    for function in products:
        check(
            function, *[lambda n=n: (torch.ones(1), n) for n in (2, 3, 4, 2**40, -(2**62), 5)], backend=False
        )


def test_what_one_trace_assumed_of_a_division_is_no_others():
    def f(x):
        return x.reshape(x.shape[0] // 2 * 2, -1) * 2

    even, odd = [lambda n=n: (arange(n * 4.0).view(n, 4),) for n in (4, 3)]
    for order in ([even, odd, even], [odd, even, odd]):
        check(f, *order)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: x * (1 << k),
        lambda x, k: x * (8 >> k),
        lambda x, k: (x, 1 << k)[:1],
        lambda x, k: x * 2 if (1 << k) > 1000 else x,
        lambda x, k: x * (x.shape[0] << k),
    ],
)
def test_a_negative_shift_raises(function, gradients):
    compiled = staticrt.compile(function)
    for count in (1, 2, 3, -1, 4, -2):
        x = torch.ones(3, requires_grad=gradients)
        try:
            expected = function(x, count)
        except ValueError:
            with pytest.raises(ValueError, match="negative shift count"):
                compiled(x, count)
        else:
            torch.testing.assert_close(compiled(x, count), expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_powers_of_negative_numbers(gradients):
    """torch.fx writes `(-2) ** n` as `-2 ** n`."""

    def powers(x, n):
        return x * (-2) ** n, (-3) ** n

    def split(x, n):
        print(end="")
        return powers(x, n)

    torch._dynamo.reset()
    ways = (staticrt.compile(powers), staticrt.compile(split), torch.compile(powers, backend="staticrt"))
    for n in (1, 2, 3, 4, 5):
        x = torch.ones(2, requires_grad=gradients)
        for compiled in ways:
            torch.testing.assert_close(compiled(x, n), powers(x, n))


@pytest.mark.parametrize("name", ["eq_", "pow_", "clamp_min_", "atan2_", "floor_divide_", "add_"])
def test_what_is_written_in_place_does_not_grow(name):
    def f(x, y):
        return getattr(x * 1, name)(y)

    fast = staticrt.compile(f)
    with torch.no_grad():
        torch.testing.assert_close(
            fast(torch.ones(3, 3), torch.ones(3, 3)), f(torch.ones(3, 3), torch.ones(3, 3))
        )
        for sizes in ((4, 1), (3, 1)):
            with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
                fast(torch.ones(sizes), torch.ones(sizes[::-1]))


@pytest.mark.parametrize("name", ["__lshift__", "__rshift__", "__and__", "__ior__"])
def test_operators_of_python_broadcast(name):
    def f(x, y):
        return getattr(x * 1, name)(y) + 1

    fast = staticrt.compile(f)
    with torch.no_grad():
        for rows in (4, 3):
            x, y = torch.randint(5, (rows, 2)), torch.randint(5, (1, 2))
            left, right = (x, y) if name == "__ior__" else (x[:, :1], y)
            assert fast(left, right).equal(f(left, right))
    assert fast.explain().traces, fast.explain()
    assert not fast.explain().eager, fast.explain()


@pytest.mark.parametrize("ask", [guard_or_false, guard_or_true, statically_known_true])
def test_a_model_asks_what_is_known_of_a_size(ask):
    """Of a number, all three answer what is true of it."""
    compiled = staticrt.compile(lambda x: x * (2 if ask(x.shape[0] == 4) else 3))
    assert [compiled(torch.ones(n))[0].item() for n in (4, 3, 5, 4)] == [2, 3, 3, 2]
