"""Views among results: what autograd knows of them, and what they say of themselves."""

import pytest
import torch

import staticrt
from tests.support.compilers import each_compiler

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _view_of_argument(x):
    with torch.no_grad():
        y = x.view(-1)
    return y, x * 2


def _view_alone(x):
    with torch.no_grad():
        return x.view(-1)


def _view_of_intermediate(x):
    h = x * 3
    with torch.no_grad():
        y = h.view(-1)
    return y, h * 2


def _one_of_several_views(x):
    with torch.no_grad():
        _first, second = x.unbind(0)
    return second, x * 2


def _view_of_view(x):
    with torch.no_grad():
        y = x.view(-1)
    return y[1:], x * 2


@pytest.mark.filterwarnings("ignore")
@each_compiler
@pytest.mark.parametrize(
    "body",
    [_view_of_argument, _view_alone, _view_of_intermediate, _one_of_several_views, _view_of_view],
    ids=lambda body: body.__name__.strip("_"),
)
def test_views_made_without_gradients_have_no_history(body, compiler):
    def state_and_gradient(function):
        x = torch.ones(2, 2, requires_grad=True)
        found = function(x)
        results = found if isinstance(found, tuple) else (found,)
        wanted = [result for result in results if result.requires_grad]
        if wanted:
            sum(result.sum() for result in wanted).backward()
        return [
            (result.requires_grad, result.grad_fn is None, result._is_view()) for result in results
        ], x.grad

    compiled = compiler(body)
    for _ in range(2):
        state, gradient = state_and_gradient(body)
        ours, our_gradient = state_and_gradient(compiled)
        assert ours == state
        torch.testing.assert_close(our_gradient, gradient)


def _asks_computed_view(x):
    view = (x * 2)[0]
    return x * (2 if view._is_view() else 3)


def _asks_view_of_argument(x):
    view = x[0]
    return x * (2 if view._base is x else 3), view.t()._is_view()


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("body", [_asks_computed_view, _asks_view_of_argument])
def test_what_a_view_says_of_itself(body, gradients, splits):
    def function(x):
        if splits:
            print(end="")
        return body(x)

    compiled = staticrt.compile(function)
    for rows in (2, 3, 2):
        x = torch.ones(rows, 2, requires_grad=gradients)
        torch.testing.assert_close(compiled(x), function(x))


@each_compiler
def test_views_of_results_are_views_of_them(compiler):
    def function(x):
        y = x * 2
        return y, y[1:], y.unbind()[0], y.detach()

    compiled = compiler(function)
    for size in (3, 4, 3):
        results, expected = compiled(torch.ones(size)), function(torch.ones(size))
        assert [t._base is results[0] for t in results] == [t._base is expected[0] for t in expected]
        results[1].add_(1)
        assert [t._version for t in results] == [1] * 4


def test_a_result_that_is_written_tells_a_backward_that_saved_a_view_of_it():
    y, view = staticrt.compile(lambda x: (lambda y: (y, y[1:]))(x * 2))(torch.ones(3))
    loss = (view * torch.ones(2, requires_grad=True)).sum()
    y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("writes", [False, True])
def test_one_of_several_results_that_is_an_argument(grad, writes):
    """In the first call of a signature and in those that it prepares; sizes that differ make it a view."""

    def function(x, y, z):
        a, b = torch.broadcast_tensors(x, y)
        if writes:
            z.add_(1)
        return a, b, z

    compiled = staticrt.compile(function)
    for rows in (4, 4, 5, 5, 1, 0):
        for others in (rows, 1):
            x = torch.arange(3.0 * rows).reshape(rows, 3).requires_grad_(grad)
            y, z = torch.ones(others, 3), torch.ones(2)
            got, expected = compiled(x, y, z), function(x, y, z)
            torch.testing.assert_close(got, expected)
            assert [[a is b for a in got] for b in (x, y)] == [[a is b for a in expected] for b in (x, y)]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_one_of_several_results_that_is_an_argument_which_is_written(grad):
    def function(x, y):
        a, b = torch.broadcast_tensors(x, y)
        a.add_(b)
        return a, b

    compiled = staticrt.compile(function)
    for rows in (4, 4, 5, 1):
        found = []
        for run in (compiled, function):
            x = torch.arange(3.0 * rows).reshape(rows, 3).requires_grad_(grad) * 1
            y = torch.ones(rows, 3)
            a, b = run(x, y)
            assert (a is x, b is y) == (True, True)
            found.append((a, b))
        torch.testing.assert_close(*found)
