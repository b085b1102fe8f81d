"""In-place views: sizes that Dynamo knows after them, in graphs for us; guards; Dynamo for other backends is left alone."""

import copy
import functools

import pytest
import torch

import staticrt
from staticrt.api.backend import staticrt_backend
from staticrt.frontend.dynamo import in_place_views


def views_in_a_row(x):
    y = x.add(1)
    y.unsqueeze_(0)
    y.squeeze_(0)
    return y * 2


def view_after_mul(x):
    y = x.add(1)
    y.mul_(3)
    y.t_()
    return y * 2


def view_after_augmented_addition(x):
    y = x + 1
    y += 1
    y.unsqueeze_(0)
    return y * 2


def calls_in_a_row(x):
    return x.add(1).mul_(3).unsqueeze_(0) * 2


def another_name(x):
    y = x + 1
    z = y
    y.t_()
    return z * z.shape[0], z[: z.shape[0] // 2]


def what_an_operator_returned(x):
    y = x + 1
    z = y.mul_(2)
    y.t_()
    return z * z.shape[0], y * y.shape[0], z.dim()


def what_it_was_called_on(x):
    y = x + 1
    z = torch.relu_(y)
    held = [z]
    z.unsqueeze_(0)
    return y * y.shape[0], y.dim(), held[0].shape[1]


CHAINS = (views_in_a_row, view_after_mul, view_after_augmented_addition, calls_in_a_row)
NAMES = (another_name, what_an_operator_returned, what_it_was_called_on)


def assert_whole(function, backend, dynamic):
    torch._dynamo.reset()
    fast = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for shape in ((2, 3), (5, 7)):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("backend", ["staticrt", "aot_eager"])
@pytest.mark.parametrize("function", CHAINS)
def test_chains_stay_whole(function, backend, dynamic):
    assert_whole(function, backend, dynamic)


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("backend", ["staticrt", functools.partial(staticrt_backend, options={})])
@pytest.mark.parametrize("function", NAMES)
def test_each_name_of_the_tensor_has_the_new_sizes(function, backend, dynamic):
    assert_whole(function, backend, dynamic)


@pytest.mark.parametrize("function", NAMES)
def test_partial_graphs_of_compile(function):
    def split(x):
        return function(x * float(x.numpy().sum()))

    fast = staticrt.compile(split)
    with torch.no_grad():
        for shape in ((2, 3), (5, 7)):
            x = torch.ones(shape)
            torch.testing.assert_close(fast(x), split(x))


def test_variables_of_other_backends_are_not_kept():
    in_place_views._variables.clear()
    kept = []

    def backend(gm, inputs):
        kept.append(len(in_place_views._variables))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(what_an_operator_returned, backend=backend)(torch.randn(2, 3))
    assert kept == [0]


aten = torch.ops.aten
OPERATORS = {
    "t_": lambda x: aten.t_(x),
    "unsqueeze_": lambda x: aten.unsqueeze_(x, 0),
    "squeeze_ overload": lambda x: aten.squeeze_.default(x),
    "transpose_ by keyword": lambda x: aten.transpose_(self=x, dim0=0, dim1=1),
    "method by its class": lambda x: torch.Tensor.unsqueeze_(x, 0),
    "what an operator on it returned": lambda x: aten.t_(x.mul_(2)),
    "method of what an operator on it returned": lambda x: x.mul_(2).t_(),
}


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_in_calls_that_dynamo_splits(name, gradients, is_argument):
    def function(x, y):
        print(end="")
        z = x if is_argument else y * 2
        OPERATORS[name](z)
        return y * 2, z * z.shape[0], z.dim()

    compiled = staticrt.compile(function)
    for rows in (2, 3, 2):
        given, expected = torch.ones(1, rows), torch.ones(1, rows)
        y = torch.ones(1, rows, requires_grad=gradients)
        torch.testing.assert_close(compiled(given, y), function(expected, y))
        assert given.shape == expected.shape
        torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("squeeze", [lambda x: x.squeeze_(), lambda x: x.squeeze_(1)])
def test_a_size_of_one_is_guarded(squeeze):
    def function(x, rows):
        return squeeze(x[: int(rows)]), squeeze(x * 2)

    compiled = staticrt.compile(function)
    with torch.no_grad():
        for size in ((3, 1), (3, 5), (1, 1), (1, 0), (1, 5)):
            for rows in (0, 1, 2):
                x, rows = torch.ones(size), torch.tensor(rows)
                assert [y.shape for y in compiled(x, rows)] == [y.shape for y in function(x.clone(), rows)]


def test_a_method_that_is_no_operator_is_called_as_it_is():
    """`copy.copy` calls `__reduce_ex__`, whose name is an attribute of `torch.ops.aten`, and ends like an in-place operator's."""
    fast = torch.compile(lambda x: copy.copy(x) + 1, backend="staticrt")
    assert fast(torch.ones(2)).tolist() == [2.0, 2.0]
