"""Models that go on after an error of an operator, which a graph does not: they answer as in eager."""

import contextlib
import sys

import pytest
import torch
import torch.nn.functional as F

import staticrt
from tests.support.joint_traces import fast_calls


def factors(x):
    for jitter in (0.0, 1.0, 10.0):
        try:
            return torch.linalg.cholesky(x @ x.mT + (jitter - 1) * torch.eye(len(x)))
        except torch.linalg.LinAlgError:
            continue
    return None


def selects(x):
    y = x * 2
    with contextlib.suppress(IndexError):
        y = x.index_select(0, (x.detach().sum().abs() * 10).long().view(1))
    return y + 1


def loses(x):
    try:
        return F.cross_entropy(x, (x.detach()[:, 0] * 10).long().abs())
    except:  # noqa: E722
        return x.sum()


class Suppresses:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        self.error = error
        return isinstance(error, IndexError)


def looks_up(x):
    y = x * 2
    with Suppresses():
        y = F.embedding((x.detach()[0] * 9).long().abs(), x)
    return y * 3


def reads_text(x):
    try:
        return x.view(7)
    except RuntimeError as error:
        return x * len(str(error))


def adds_sizes(x):
    try:
        return torch.ones(3) + torch.ones(4)
    except RuntimeError as error:
        return x * len(str(error))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("model", [factors, selects, loses, looks_up, reads_text, adds_sizes])
def test_a_model_that_catches_an_error_goes_on(model, gradients):
    compiled = staticrt.compile(model)
    for scale in (0.01, 0.01, 1.0, 1.0, 0.01, 10.0):
        found = []
        for run in (compiled, model):
            torch.manual_seed(3)
            x = (torch.randn(3, 3) * scale).requires_grad_(gradients)
            result = run(x)
            found.append((result, torch.autograd.grad(result.sum(), x) if gradients else ()))
        torch.testing.assert_close(*found)


SAID_OF_CLASSES = {
    "operand": lambda x: x + "a",
    "compared": lambda x: x < "a",
    "called": lambda x: x(),
    "argument": lambda x: torch.cat(x),
    "parameter": lambda x: SCALE.no_such_attribute,
}
SAID_OF_SIZES = {
    "index": lambda x: x[5],
    "written": lambda x: x.clone().__setitem__(9, 1),
    "second index": lambda x: x[None, 0, -7],
}
SCALE = torch.nn.Parameter(torch.ones(()))


@pytest.mark.parametrize("body", [*SAID_OF_CLASSES, *SAID_OF_SIZES])
def test_texts_of_errors_that_no_operator_raises_are_eagers(body):
    fails = {**SAID_OF_CLASSES, **SAID_OF_SIZES}[body]

    def model(x):
        try:
            fails(x)
        except Exception as error:
            return SCALE * x, str(error)
        return SCALE * x, "none"

    compiled = staticrt.compile(model)
    with torch.no_grad():
        for size in (2, 2, 3, 9, 3):
            assert compiled(torch.ones(size, 2))[1] == model(torch.ones(size, 2))[1]
    assert bool(compiled.explain().eager) == (body in SAID_OF_SIZES)


def test_without_handlers_the_caller_gets_the_programs_error():
    compiled = staticrt.compile(lambda x, i: x.index_select(0, i) * 2)
    with torch.no_grad():
        for _ in range(2):
            compiled(torch.ones(3, 2), torch.tensor([1]))
        with pytest.raises(IndexError, match="index_select"):
            compiled(torch.ones(3, 2), torch.tensor([9]))
    assert "may catch" not in str(compiled.explain())


def test_handlers_of_errors_that_no_operator_raises_keep_the_fast_path():
    def model(x):
        try:
            return x * model.scale
        except (AttributeError, KeyError):
            return x * 2

    compiled = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(5):
            assert compiled(torch.ones(3)).tolist() == [2.0] * 3
    assert fast_calls(compiled) > 0


class Effects(torch.nn.Module):
    """It writes a buffer and draws before an operator that may raise."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("count", torch.zeros(size))

    def forward(self, x, index):
        self.count.add_(1)
        noise = torch.rand(3)
        try:
            y = F.embedding(index, x)
        except IndexError:
            return x * noise * self.count[0] * 5
        return x * noise + y.sum()


@pytest.mark.parametrize("gradients", [False, True])
def test_what_was_drawn_and_written_before_the_error_is_taken_back(gradients):
    model, plain = Effects(1), Effects(1)
    compiled = staticrt.compile(model)
    for index in (1, 1, 9, 1, 9, 9, 0):
        found = []
        for run in (compiled, plain):
            torch.manual_seed(index)
            x = torch.ones(3, 3, requires_grad=gradients)
            result = run(x, torch.tensor([0, index]))
            found.append(
                (result, torch.rand(2), *(torch.autograd.grad(result.sum(), x) if gradients else ()))
            )
        torch.testing.assert_close(*found)
        assert torch.equal(model.count, plain.count)


def raises_again(x):
    raise


def after_a_handler(x):
    try:
        y = x.no_such_attribute
    except AttributeError:
        y = x
    if len(y) == 2:
        raise
    return y


def goes_on_from_its_caller(x):
    try:
        raises_again(x)
    except KeyError:
        return x * 2
    except RuntimeError:
        return x * 3


def looks_at_the_context(x):
    try:
        raise ValueError
    except ValueError as error:
        return x * (2 if error.__context__ is None else 3)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not say where a handler begins")
@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("body", [after_a_handler, goes_on_from_its_caller, looks_at_the_context])
def test_an_exception_that_the_caller_handles(body, in_parts):
    def model(x):
        if in_parts:
            print(end="")
        return body(x)

    def answers(function):
        with torch.no_grad():
            yield taken(function)
            try:
                raise KeyError("of the caller")
            except KeyError:
                yield taken(function)
                yield taken(function)
            yield taken(function)

    assert [*answers(staticrt.compile(model))] == [*answers(model)]


def taken(function):
    try:
        return function(torch.ones(2)).tolist()
    except (KeyError, RuntimeError) as error:
        return type(error), str(error)


def test_a_handler_that_raises_again_leaves_the_model_compiled():
    def model(x):
        try:
            try:
                return x * model.scale
            except KeyError:
                raise
        except AttributeError:
            try:
                return x[None] * 2
            except AttributeError:
                raise

    compiled = staticrt.compile(model, fullgraph=True)
    with torch.no_grad():
        assert compiled(torch.ones(3)).tolist() == [[2.0] * 3]
