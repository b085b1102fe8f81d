"""Views that one operator gives with others, as `chunk` does: eager lets nobody write them, and each is a tensor of its own."""

import pytest
import torch

import staticrt
from tests.support.compilers import backend


def of_argument(x):
    return x.unbind(0)[0], x.unbind(0)[0], x * 2


def of_computed(x):
    y = x * 2
    return (*y.chunk(2), y)


def alone(x):
    return ((x * 2).split(1)[0],)


def views_of_them(x):
    first, second = (x * 2).chunk(2)
    return first.view(-1), second[0]


def _parts(function):
    def model(x):
        x = x * 1
        torch._dynamo.graph_break()
        return function(x)

    return staticrt.compile(model, joint_trace=False), model


CASES = [
    (of_argument, staticrt.compile),
    (of_argument, backend),
    (of_computed, staticrt.compile),
    (of_computed, _parts),
    (alone, staticrt.compile),
    (alone, backend),
    (views_of_them, _parts),
]


@pytest.mark.parametrize(("function", "compiler"), CASES)
def test_as_in_eager(function, compiler):
    compiled = compiler(function)
    compiled, function = compiled if isinstance(compiled, tuple) else (compiled, function)
    found = []
    for run in (compiled, function, compiled):
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        results = run(x)
        same = [a is b for a in results for b in results]
        sum((k + 1) * result.sin().sum() for k, result in enumerate(results)).backward()
        with pytest.raises(RuntimeError, match="returns multiple views"):
            results[0].add_(1)
        found.append((same, results, x.grad))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], found[1])
