"""A result that nobody reads has the effects that it has in eager: an error, random numbers drawn."""

import io

import pytest
import torch

import staticrt
from staticrt.ops.raising import may_raise
from tests.support.compilers import each_compiler_for_gradients

F = torch.nn.functional

# Of x: float32 [3], i: int64 [1]; each raises for some i, or some x.
RAISES = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i),
    "index_select": lambda x, i: x.index_select(0, i),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: F.embedding(i, x[:, None]),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x[:, None]),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "index_put in place": lambda x, i: x.clone().index_put_((i,), x[:1]),
    "index_fill in place": lambda x, i: x.clone().index_fill_(0, i, 1.0),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
    "bincount": lambda x, i: torch.bincount(i - 1),
    "division": lambda x, i: i // (i - 5),
    "remainder": lambda x, i: i % (i - 5),
    "cross_entropy": lambda x, i: F.cross_entropy(x[None], i),
    "nll_loss": lambda x, i: F.nll_loss(x[None], i),
    "repeat_interleave": lambda x, i: x.repeat_interleave(i.repeat(3) - 1),
    "inverse": lambda x, i: torch.linalg.inv(torch.diag(x + i - 5)),
    "cholesky": lambda x, i: torch.linalg.cholesky(torch.diag(x - i + 3)),
    "only its sizes are read": lambda x, i: torch.zeros_like(x[i]),
    "read by what nobody reads": lambda x, i: x[i].exp() + 1,
}


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def make(name):
    def model(x, i):
        RAISES[name](x, i)
        return x * 2

    return model


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("name", RAISES)
def test_an_error_of_a_result_that_nobody_reads_is_raised(name, gradients):
    model = make(name)
    fast = staticrt.compile(model)
    raised = 0
    for number in (1, 2, 0, 5, 1):
        x = torch.tensor([0.0, 1.0, 2.0], requires_grad=gradients)
        i = torch.tensor([number])
        with torch.set_grad_enabled(gradients):
            expected = outcome(model, x, i)
            raised += isinstance(expected, type)
            assert_same(outcome(fast, x, i), expected)
    assert raised
    assert not fast.explain().eager


def test_it_is_kept_in_an_archive_and_in_a_branch():
    def model(x, i):
        x[i]
        return torch.cond(x.sum() > 0, lambda y: (y.gather(0, i), y * 2)[1], lambda y: y * 3, (x,))

    file = io.BytesIO()
    x = torch.arange(3.0)
    with torch.no_grad():
        fast = staticrt.compile(model)
        fast(x, torch.tensor([1]))
        staticrt.save(fast, file, (x, torch.tensor([1])))
        again = staticrt.load(file.getvalue())
        for function in (fast, again):
            torch.testing.assert_close(function(x, torch.tensor([2])), x * 2)
            with pytest.raises((IndexError, RuntimeError)):
                function(x, torch.tensor([7]))


@each_compiler_for_gradients
def test_partial_graphs_that_are_differentiated_raise_it(compiler):
    def model(x, i):
        y = x * 2
        F.embedding(i, x[:, None])
        x.clone().index_add_(0, i, y[:1])
        i // (i - 5)
        return y.exp().sin() + y.cos() * y.tanh() + y.sigmoid()

    fast = compiler(model)
    for number in (1, 7, 5, 2):
        x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
        assert_same(outcome(fast, x, torch.tensor([number])), outcome(model, x, torch.tensor([number])))


@each_compiler_for_gradients
@pytest.mark.parametrize("indexes", ["y[i]", "y.__setitem__(i, 2.0)"])
def test_an_index_beyond_a_part_that_is_differentiated_is_refused(compiler, indexes):
    def model(x, i):
        y = x * 3
        if indexes == "y[i]":
            y = y[i]
        else:
            y[i] = 2.0
        y[1:] += 1  # nobody reads what is written
        return x.exp().sin() + x.cos()

    fast = compiler(model)
    for number in (1, 7, 2):
        x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
        assert_same(outcome(fast, x, torch.tensor([number])), outcome(model, x, torch.tensor([number])))


@each_compiler_for_gradients
def test_random_numbers_that_nobody_reads_are_drawn(compiler):
    def model(x):
        y = x * torch.rand(3)
        torch.bernoulli(y.sigmoid())
        torch.nn.functional.dropout(y, 0.5)
        z = y + torch.randn_like(x)
        torch.randperm(4)
        y.sum().sigmoid().bernoulli_().t_()
        return z.exp()

    fast = compiler(model)
    for _ in range(3):
        seen = []
        for function in (model, fast):
            torch.manual_seed(3)
            x = torch.arange(3.0, requires_grad=True)
            result = function(x)
            seen.append((result.detach(), *torch.autograd.grad(result.sum(), x), torch.rand(1)))
        torch.testing.assert_close(seen[1], seen[0])


def test_a_result_that_no_contents_make_raise_is_not_computed():
    def model(x, i):
        x.exp().cumsum(0)
        i + 1
        x / i
        return x * 2

    fast = staticrt.compile(model)
    with torch.no_grad():
        fast(torch.ones(3), torch.tensor([1]))
    assert [str(name) for name, _count in fast.explain().traces[0].operators] == ["aten.mul.Tensor"]


REFUSED = {
    "bmm": (lambda x: torch.bmm(x[None], x[None]), torch.bool),
    "softmax": (lambda x: x.softmax(-1), torch.int64),
    "cummax": (lambda x: x.cummax(0), torch.complex64),
    "gelu": (F.gelu, torch.uint8),
    "lgamma": (torch.lgamma, torch.complex64),
    "sort": (lambda x: x.sort()[1][0], torch.complex64),
    "kthvalue, whose sizes are read": (lambda x: torch.zeros_like(x.kthvalue(1)[0]), torch.bool),
    "cdist": (lambda x: torch.cdist(x, x), torch.float16),
    "cumsum, with our own sizes": (lambda x: x.cumsum(0, dtype=torch.bool), torch.float32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_dtype_that_eager_refuses_is_refused_although_nobody_reads_the_result(name):
    refused, dtype = REFUSED[name]

    def model(x):
        refused(x)
        return x * 2

    fast = staticrt.compile(model)
    with torch.no_grad():
        for size in (3, 4, 3):
            x = torch.ones(size, size, dtype=dtype)
            assert_same(outcome(fast, x), outcome(model, x))
        x = torch.ones(3, 3)
        assert_same(outcome(fast, x), outcome(model, x))


def test_a_refused_dtype_may_be_an_argument_or_depend_on_one():
    def model(x, dtype, rounding):
        torch.linspace(0, 4, 5, dtype=dtype)
        torch.div(x, x, rounding_mode=rounding)
        return x * 2

    fast = staticrt.compile(model)
    x = torch.ones(3, dtype=torch.complex64)
    for dtype in (torch.float32, torch.bool):
        for rounding in (None, "floor"):
            assert_same(outcome(fast, x, dtype, rounding), outcome(model, x, dtype, rounding))


def test_operators_that_may_raise_are_known_by_their_contents():
    aten = torch.ops.aten
    assert may_raise(aten.index_put_.default, torch.ones(1))
    assert may_raise(aten.gather.default, torch.ones(1))
    assert may_raise(aten.div_.Tensor_mode, torch.ones(1, dtype=torch.int64))
    assert not may_raise(aten.div.Tensor, torch.ones(1))
    assert not may_raise(aten.mul.Tensor, torch.ones(1))


def assert_same(got, expected):
    if isinstance(expected, type):
        assert isinstance(got, type)
        assert issubclass(got, (expected, RuntimeError))
    else:
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: x.min(0),
        lambda x: x.max(),
        lambda x: x.median(0),
        lambda x: x.mode(0),
        lambda x: F.interpolate(x[None], size=3),
        lambda x: torch.fft.fft(x),
    ],
)
def test_an_empty_tensor_is_refused_as_in_eager(reduce):
    def model(x):
        reduce(x)
        return x.clone()

    fast = staticrt.compile(model)
    with torch.no_grad():
        for rows in (3, 0, 2, 0):
            assert_same(outcome(fast, torch.ones(rows, 3)), outcome(model, torch.ones(rows, 3)))


@each_compiler_for_gradients
def test_an_overlapping_view_is_written_between_graphs_that_are_differentiated(compiler):
    def model(x):
        x = x * 1
        windows = x.unfold(0, 2, 1)
        print(end="")
        result = x.squeeze()
        windows.add_(1)
        return result

    fast = compiler(model)
    for _ in range(2):
        assert fast(torch.arange(3.0, requires_grad=True)).tolist() == [1, 3, 3]


def moved_up(v):
    v[1:] = v[:-1]


@each_compiler_for_gradients
@pytest.mark.parametrize("write", [moved_up, lambda v: v[1:].add_(v[:-1]), lambda v: v.t().copy_(v)])
def test_a_write_that_reads_its_own_memory_is_refused_as_in_eager(write, compiler):
    def model(x):
        y = x * 1
        y[1:] += 1
        write(y)
        return x * 2 + y.sum()

    fast = compiler(model)
    for size in ((3, 3), (1, 1), (2, 2)):
        args = (torch.ones(size, requires_grad=True),)
        assert_same(outcome(fast, *args), outcome(model, *args))


def positives(x):
    return x[x > 0]


def rows_of_positives(x):
    y = positives(x)
    return y[:, None].reshape(y.shape[0], -1)


def positives_whose_rows_nobody_reads(x):
    rows_of_positives(x)
    return positives(x) + 1


@pytest.mark.parametrize("function", [rows_of_positives, positives_whose_rows_nobody_reads])
@pytest.mark.parametrize("first", [1.0, -1.0])
def test_a_size_beside_a_zero_that_data_decides_raises(function, first):
    """No elements in rows of any size: eager refuses to say which."""
    fast = staticrt.compile(function)
    with torch.no_grad():
        for sign in (first, 1.0, -1.0, 1.0):
            x = torch.full((4,), sign)
            if sign > 0:
                assert torch.equal(fast(x), function(x))
            else:
                with pytest.raises(RuntimeError, match="ambiguous"):
                    function(x)
                with pytest.raises(RuntimeError, match="ambiguous"):
                    fast(x)


@pytest.mark.parametrize("size", [0, 3])
def test_a_view_beyond_the_memory_is_refused_although_nobody_reads_it(size):
    def model(x):
        x.as_strided((2, 2), (1, 2))
        return x * 2

    fast = staticrt.compile(model)
    for n in (6, size, 7, size):
        x = torch.ones(n)
        assert_same(outcome(fast, x), outcome(model, x))
    assert outcome(model, torch.ones(size)) is RuntimeError


WINDOWS = {
    "conv2d": lambda x: F.conv2d(x, torch.ones(2, 1, 2, 2), padding=1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2, padding=1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2, padding=1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_avg_pool2d of one image": lambda x: F.adaptive_avg_pool2d(x[0], 2),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_of_padding_alone_is_refused_although_nobody_reads_it(name):
    def model(x):
        WINDOWS[name](x[..., : x.shape[-1] // 2])
        return x * 2

    fast = staticrt.compile(model)
    for n in (6, 0, 7, 1):
        x = torch.ones(1, 1, 5, n)
        assert_same(outcome(fast, x), outcome(model, x))
    assert outcome(model, x) is RuntimeError
