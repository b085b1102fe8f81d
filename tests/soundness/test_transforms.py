"""Function transforms inside a model: forward-mode differentiation, `torch.func`, custom autograd Functions."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

from tests.support.compilers import backend, each_compiler

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _gradient(x):
    return torch.func.grad(lambda a: torch.special.i1(a).sum())(x)


def _transposed_rows(x):
    return torch.vmap(lambda row: torch.special.i1(row.T))(x)


@pytest.mark.parametrize("transform", [_gradient, _transposed_rows])
def test_a_trace_that_fails_within_a_transform_leaves_none_behind(transform):
    """The second size asks for symbolic sizes, which our own rules lack for `i1`."""
    compiled = backend(transform)
    with torch.no_grad():
        for rows in (3, 4, 5):
            x = torch.randn(rows, 2, 2)
            torch.testing.assert_close(compiled(x), transform(x))
            assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def _tangent(x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(torch.sin(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gradients", [False, True])
@each_compiler
def test_forward_mode_inside_a_model_leaves_no_level_behind(compiler, gradients):
    compiled = compiler(_tangent)
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), x.cos())
            torch.testing.assert_close(_tangent(x), x.cos())


@each_compiler
def test_tangents_of_a_call_that_needs_gradients(compiler):
    weight = torch.randn(3, requires_grad=True)
    compiled = compiler(lambda x: x * weight)
    compiled(torch.ones(3))
    with forward_ad.dual_level():
        result = compiled(forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0)))
        torch.testing.assert_close(forward_ad.unpack_dual(result).tangent, 2 * weight)


class _Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(2, 2) * 3


@each_compiler
def test_a_custom_function_that_returns_a_view_keeps_its_backward(compiler):
    def function(x):
        y = x * 1
        return _Flat.apply(y), y

    compiled = compiler(function)
    for _ in range(2):
        x = torch.ones(2, 2, requires_grad=True)
        flat, y = compiled(x)
        (flat.sum() + y.sum()).backward()
        assert x.grad.tolist() == [[4, 4], [4, 4]]
