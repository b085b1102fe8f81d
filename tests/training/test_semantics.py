"""What a compiled region must keep of eager's semantics: aliases, writes, hooks, modes, undefined gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from staticrt import training
from tests.support.training_cases import rows, small_net


def test_three_calls_and_other_sizes(against_eager):
    against_eager(small_net(), rows(), calls=5)


def test_graph_break(against_eager):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x).tanh()
            torch._dynamo.graph_break()
            return self.second(y) * (2.0 if y.sum() > 0 else 3.0)

    against_eager(Broken(), rows(8), calls=5)


def test_written_argument(against_eager):
    def function(x, w):
        x.mul_(2)
        return x * w

    against_eager(function, lambda c: (torch.randn(4 + c), torch.randn(4 + c, requires_grad=True)))


def test_written_argument_that_needs_gradients(compiler):
    compiled = compiler(lambda x, w: (x.mul_(w), x.sin())[1])
    results = []
    for run in (compiled, lambda x, w: (x.mul_(w), x.sin())[1]):
        torch.manual_seed(3)
        leaf, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
        x = leaf * 3
        out = run(x, w)
        (out.sum() + x.cos().sum()).backward()
        results.append((out.detach(), x.detach(), leaf.grad, w.grad))
    torch.testing.assert_close(*results)


def test_second_order_of_a_written_argument(compiler):
    def function(x, w):
        x.mul_(w)
        return x.sin()

    results = []
    for run in (compiler(function), function):
        torch.manual_seed(3)
        leaf, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
        x = leaf * 3
        out = run(x, w)
        total = out.sum() + x.cos().sum()
        slopes = torch.autograd.grad(total, (leaf, w), create_graph=True)
        again = torch.autograd.grad(sum(s.square().sum() for s in slopes), (leaf, w))
        results.append(again)
    torch.testing.assert_close(*results)


def test_writes_into_a_returned_view(compiler):
    def function(x):
        y = x.sin()
        return y, y[0]

    results = []
    for run in (compiler(function), function):
        x = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_()
        y, row = run(x)
        row.mul_(2)
        assert row._base is y or row._base is y._base
        (y * y).sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(*results)


def test_views_of_arguments(compiler):
    x = torch.randn(3, 4, requires_grad=True)
    compiled = compiler(lambda x: (x.t(), x.view(-1), x * 2))
    for _call in range(3):
        transposed, flat, double = compiled(x)
        assert transposed._is_view()
        assert transposed._base is x
        assert flat.data_ptr() == x.data_ptr()
        assert not double._is_view()
        (grad,) = torch.autograd.grad((transposed.sum() + flat.square().sum() + double.sum()), x)
        torch.testing.assert_close(grad, 3 + 2 * x.detach())


def test_views_of_intermediates_twice_differentiable(compiler):
    def function(x):
        y = x**3
        return y[1:], y.view(2, 3)

    results = []
    for run in (compiler(function), function):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        tail, grid = run(x)
        (slope,) = torch.autograd.grad(tail.sum() + grid.square().sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(slope.sum(), x)
        results.append((slope.detach(), again))
    torch.testing.assert_close(*results)


def test_tangent_that_is_not_contiguous(compiler):
    compiled, x = compiler(lambda x: x.sin() * 2), torch.randn(4, 6, requires_grad=True)
    for tangent in (torch.randn(6, 4).t(), torch.randn(4, 1).expand(4, 6), torch.randn(4, 12)[:, ::2]):
        (grad,) = torch.autograd.grad(compiled(x), x, tangent)
        torch.testing.assert_close(grad, tangent * 2 * x.detach().cos())


def test_undefined_gradients_stay_undefined(compiler):
    def function(x, a, b):
        return (x * a).sum(0), (x * b).tanh(), x.mean()

    compiled = compiler(function)
    for size in (4, 4, 7):
        for used in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
            grads = []
            for run in (compiled, function):
                torch.manual_seed(size)
                leaves = [torch.randn(size, 3, requires_grad=True) for _ in range(3)]
                outs = run(*leaves)
                sum(outs[i].sum() for i in used).backward()
                grads.append([leaf.grad for leaf in leaves])
            for mine, theirs in zip(*grads, strict=True):
                assert (mine is None) == (theirs is None)
                if theirs is not None:
                    torch.testing.assert_close(mine, theirs)


def test_undefined_gradient_of_an_infinite_branch(compiler):
    """0 · ∞ would be NaN: the branch that nobody asks for is not computed."""
    compiled = compiler(lambda x: (x * 2, (x - 1).log()))
    x = torch.ones(3, requires_grad=True)
    compiled(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_undefined_gradient_where_the_other_summand_is_laid_out_otherwise(compiler):
    """The sum of both gradients is row-major, what remains of it is not; views that follow must not be misled."""

    def function(x):
        y = x.sin()
        return y.mul(2), (y.transpose(0, 1).exp()[:, :3]).matmul(torch.ones(3, 2)).transpose(0, 1)

    compiled = compiler(function)
    for used in (0, 1, (0, 1)):
        grads = []
        for run in (compiled, function):
            x = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
            outs = run(x)
            sum(outs[i].square().sum() for i in (used if isinstance(used, tuple) else (used,))).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_undefined_gradients_are_plans_of_their_own(compiler):
    compiled = compiler(lambda x: (x.sin(), x.cos()))
    x = torch.randn(3, requires_grad=True)
    for used in (0, 1, 0, 1, 0):
        compiled(x)[used].sum().backward()
    (sum(out.sum() for out in compiled(x))).backward()
    state = training.debug_state()[-1]
    (backward,) = [graph for graph in state["graphs"] if graph["role"] == "backward"]
    # The native node asks once for each plan and keeps it.
    assert (backward["misses"], backward["hits"], backward["evicted"]) == (
        3,
        3 if state["node"] == "aot" else 0,
        0,
    )
    assert sorted(len(key) for key in backward["plans"]) == [0, 1, 1]


def test_aliased_arguments(against_eager):
    def inputs(call):
        x = torch.randn(4 + call, requires_grad=True)
        return x, x

    against_eager(lambda x, y: x * y.sin(), inputs)


def test_detached_and_integer_outputs(compiler):
    compiled = compiler(lambda x: (x.sin(), x.detach() * 2, x.argmax(), x > 0, 3))
    for _call in range(3):
        x = torch.randn(5, requires_grad=True)
        value, detached, index, mask, number = compiled(x)
        assert value.requires_grad
        assert not detached.requires_grad
        assert (index.item(), number) == (x.argmax().item(), 3)
        assert torch.equal(mask, x > 0)
        value.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


def test_results_belong_to_the_caller(compiler):
    compiled = compiler(lambda x: (x * 2).relu())
    kept = []
    for call in range(4):
        x = torch.full((3,), float(call + 1), requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        kept.append((out.detach(), x.grad))
    for call, (out, grad) in enumerate(kept):
        assert out.tolist() == [2.0 * (call + 1)] * 3
        assert grad.tolist() == [2.0] * 3
        grad.add_(1)


def test_numpy_in_the_middle(compiler):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(np.asarray(x.detach().numpy()) / 2)

        @staticmethod
        def backward(ctx, grad):
            return torch.from_numpy(grad.numpy() / 2)

    def function(x):
        return Half.apply(x.sin() * x).cos()

    def gradient(run):
        x = torch.linspace(0, 2, 5).requires_grad_()
        run(x).sum().backward()
        return x.grad

    expected = gradient(function)
    if not torch.allclose(gradient(torch.compile(function, backend="eager")), expected):
        pytest.skip("this Dynamo differs from eager without staticrt")
    torch.testing.assert_close(gradient(compiler(function)), expected)


def test_custom_function(compiler):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 5 * x**2  # wrong on purpose: it must be this one that runs

    compiled = compiler(lambda x: Cube.apply(x.sin()).sum())
    for _call in range(3):
        x = torch.randn(4, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, 5 * x.detach().sin() ** 2 * x.detach().cos())


def test_gradients_inside_the_graph(compiler):
    """`autograd.grad` and `backward` in the compiled function: upstream refuses them (F7)."""

    def slope(x):
        out = (x**3).sum()
        (grad,) = torch.autograd.grad(out, x)
        return grad * 2

    compiled = compiler(slope)
    for _call in range(3):
        x = torch.randn(4, requires_grad=True)
        torch.testing.assert_close(compiled(x), 6 * x.detach() ** 2)


def test_requires_grad_inside(compiler):
    def function(x):
        y = x.detach().requires_grad_()
        return y, (y**2).sum()

    compiled = compiler(function)
    for _call in range(2):
        y, out = compiled(torch.ones(3))
        out.backward()
        assert y.grad.tolist() == [2.0] * 3


def test_one_of_several_views_of_a_written_argument_is_still_its_view(compiler):
    """Upstream gives such a result memory of its own."""

    def f(x, w):
        x.mul_(w)
        return x.chunk(2)[1]

    compiled = compiler(f)
    for run in (compiled, f):
        w = torch.randn(4, 3, requires_grad=True)
        x = torch.randn(4, 3)
        out = run(x, w)
        assert out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        x.detach().fill_(7)
        assert bool((out == 7).all())


def test_a_class_of_tensors_with_methods_of_its_own(compiler):
    class Named(torch.Tensor):
        def name(self):
            return "named"

    layer = nn.Linear(3, 3)
    compiled = compiler(layer)
    for _ in range(3):
        x = torch.randn(2, 3)
        layer.zero_grad()
        out = compiled(x.as_subclass(Named))
        assert type(out) is Named
        out.sum().backward()
        torch.testing.assert_close(layer.weight.grad.as_subclass(torch.Tensor), x.sum(0).expand(3, 3))


def test_calls_with_zeros_of_both_signs_are_not_merged(against_eager):
    def model(x):
        return torch.copysign(x, x.detach() * -0.0), torch.copysign(x, x.detach() * 0.0)

    against_eager(model, lambda call: [torch.randn(4 + call, requires_grad=True)])
