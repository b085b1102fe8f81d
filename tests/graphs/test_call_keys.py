"""What tells two calls of a captured function apart, besides tensors; and who must see every operator."""

import pytest
import torch

from staticrt.graphs.context import GraphContext
from tests.support.graph_harness import device


@pytest.fixture(params=["cpu", "cpu_copy"])
def ctx(request):
    with GraphContext("cpu", backend=device(request.param)) as made:
        yield made


def test_places_of_integers_count(ctx):
    """f(1, x) and f(x, 1) had one capture between them."""
    f = ctx.wrap(lambda a, b, c: a * 10 + b * 100 + c)
    x = torch.arange(4.0)
    for _ in range(4):
        for args in ((2, x, 3), (2, 3, x), (x, 2, 3), (2, x, x), (x, x, 2)):
            a, b, c = args
            torch.testing.assert_close(f(*args), a * 10 + b * 100 + c)
    boxed = ctx.wrap(lambda args: [args[0] - args[1]], boxed=True)
    for _ in range(4):
        torch.testing.assert_close(boxed([1, x]), [1 - x])
        torch.testing.assert_close(boxed([x, 1]), [x - 1])


def test_unused_integers_share_a_capture_in_their_place_only(ctx):
    f = ctx.wrap(lambda x, step: x + 1, unused_ints=("step",))
    for step in range(5):
        torch.testing.assert_close(f(torch.ones(3), step), torch.full((3,), 2.0))
    assert ctx.explain().captures == 1


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "vjp", "functional_call"])
def test_transforms_see_operators(ctx, transform):
    """`vmap` of a captured function raised, for batched tensors have no storage."""

    def plain(x):
        return (x * x).sum(0) + 1

    f, x = ctx.wrap(plain), torch.randn(4, 3)

    def run(function):
        if transform == "vmap":
            return torch.vmap(function)(x)
        if transform == "grad":
            return torch.func.grad(lambda v: function(v).sum())(x)
        if transform == "jvp":
            return torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]
        if transform == "vjp":
            return torch.func.vjp(function, x)[1](torch.ones(3))[0]
        return torch.func.functional_call(torch.nn.Identity(), {}, (function(x),))

    for _ in range(3):
        torch.testing.assert_close(run(f), run(plain))
        torch.testing.assert_close(f(x), plain(x))


def test_modes_see_operators(ctx):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.seen += 1
            return func(*args, **(kwargs or {}))

    class Negate(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return -out if func is torch.relu else out

    f, x = ctx.wrap(lambda x: torch.relu(x) + 1), torch.ones(3)
    for calls in range(1, 4):
        torch.testing.assert_close(f(x), torch.full((3,), 2.0))
        with Count():
            f(x)
        assert Count.seen == 2 * calls
        with Negate():
            torch.testing.assert_close(f(x), torch.zeros(3))


def test_the_default_dtype_and_device_count(ctx):
    f = ctx.wrap(lambda x: torch.ones(3) * 1.5 + x.sum().to(torch.int64) * 0)
    before = torch.get_default_dtype()
    try:
        for _ in range(4):
            for dtype in (torch.float32, torch.float64):
                torch.set_default_dtype(dtype)
                assert f(torch.ones(2, dtype=torch.float32)).dtype is dtype
    finally:
        torch.set_default_dtype(before)
    captures = ctx.explain().captures
    with torch.device("cpu"):
        for _ in range(4):
            assert f(torch.ones(2)).device.type == "cpu"
    assert ctx.explain().captures == captures + 1
    assert ctx.explain().replays > 0


def test_weights_that_move_again_and_again_are_the_ones_read(ctx):
    """From the third move on, a copy was made that the module never looked at: it read freed memory."""
    module = torch.nn.Linear(3, 3)
    f = ctx.wrap(module)
    with torch.no_grad():
        for i in range(24):
            if i % 3 == 0:
                module.weight.data = torch.randn(3, 3)
            if i % 3 == 1:
                module.weight.add_(1)
            if i % 4 == 3:
                module.bias = torch.nn.Parameter(torch.randn(3))
            x = torch.randn(2, 3)
            torch.testing.assert_close(f(x), torch.nn.functional.linear(x, module.weight, module.bias))


def test_misaligned_weights_are_read_where_they_are(ctx):
    """Static arguments at odd addresses are copied; a module's own are not, for it would read the original."""
    module = torch.nn.Linear(3, 3, bias=False)
    raw = torch.zeros(64, dtype=torch.uint8)
    f = ctx.wrap(module)
    with torch.no_grad():
        module.weight.data = raw[4 : 4 + 36].view(torch.float32).view(3, 3)
        for i in range(5):
            module.weight.fill_(i)
            torch.testing.assert_close(f(torch.ones(1, 3)), torch.full((1, 3), 3.0 * i))


def test_a_view_of_an_input_that_begins_elsewhere_in_its_memory(ctx):
    """Where the captured call's input began says nothing of where a later one begins."""
    f = ctx.wrap(lambda x: (x[1:], x + 1))
    base = torch.arange(10.0)
    for start in (4, 4, 4, 0, 2, 5):
        x = base[start : start + 4]
        view, more = f(x)
        assert view.data_ptr() == x[1:].data_ptr()
        assert torch.equal(view, x[1:])
        assert torch.equal(more, x + 1)
    assert ctx.explain().captures == 1


def test_layouts_are_told_apart(ctx):
    f = ctx.wrap(lambda x: (x * 2, x.reshape(-1)))
    for _ in range(6):
        x = torch.randn(3, 3)
        for given in (x, x.t(), x[:, [2, 0, 1]].t()):
            twice, flat = f(given)
            assert torch.equal(twice, given * 2)
            assert twice.stride() == (given * 2).stride()
            assert torch.equal(flat, given.reshape(-1))
    assert ctx.explain().captures == 2


def test_modes_of_a_module_are_told_apart(ctx):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3, track_running_stats=False))
    module.append(torch.nn.Dropout(1.0))
    f = ctx.wrap(module)
    with torch.no_grad():
        for number in range(8):
            module[2].train(number % 2 == 0)
            x = torch.randn(4, 3)
            torch.testing.assert_close(f(x), module(x))
            assert f(x).any() == (number % 2 == 1)
    assert ctx.explain().captures == 2


def test_a_failed_capture_draws_nothing(ctx):
    """The function runs again from the start: its numbers are those of a call that was never captured."""
    f = ctx.wrap(lambda x: x + torch.rand(3) * torch.rand(3).sum().item())
    torch.manual_seed(5)
    got = [f(torch.zeros(3)) for _ in range(4)] + [torch.rand(2)]
    torch.manual_seed(5)
    want = [torch.rand(3) * torch.rand(3).sum().item() for _ in range(4)] + [torch.rand(2)]
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


def test_a_function_that_goes_while_another_is_captured(ctx):
    """What is captured of it is dropped when the call has ended, not under its feet."""
    for goes_in_run in (1, 2):
        held, runs = {"first": ctx.wrap(lambda x: x * 2)}, []

        def last(y, held=held, runs=runs, goes_in_run=goes_in_run):
            runs.append(1)
            if len(runs) == goes_in_run:
                held.clear()
            return y * 3

        for number in range(3):
            held["first"](torch.full((3,), float(number)))
        second = ctx.wrap(last)
        for number in range(5):
            x = torch.full((3,), float(number))
            with ctx.step():
                y = held["first"](x) if held else x * 2
                z = second(y)
            assert torch.equal(z, x * 6)
            assert torch.equal(y, x * 2)
            ctx.manager.validate()
        del second, y, z


def test_autocast_is_told_apart(ctx):
    f = ctx.wrap(lambda x, y: x @ y)
    for number in range(8):
        x, y = torch.randn(3, 4), torch.randn(4, 2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number % 2 == 0):
            got, want = f(x, y), x @ y
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want)
    assert ctx.explain().captures == 2
