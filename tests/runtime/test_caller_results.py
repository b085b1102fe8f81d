"""What kind of tensors a compiled call returns: inference tensors, views of arguments, fresh ones."""

import numpy as np
import pytest
import torch
from torch import nn

import staticrt
from staticrt.graphs.context import GraphContext

ENTRIES = {
    "staticrt.compile": staticrt.compile,
    "general path": lambda f: staticrt.compile(f, prepared=False),
    "reference": lambda f: staticrt.compile(f, executor="reference"),
    "graphs": lambda f: staticrt.compile(f, graphs=True),
    "torch.compile": lambda f: torch.compile(f, backend="staticrt"),
    "torch.compile, graphs": lambda f: torch.compile(f, backend="staticrt", options={"graphs": True}),
    "context": lambda f: GraphContext("cpu").wrap(f),
}
# Where each call leads: the first is traced, the second prepared or replayed, later ones take the fast way.
CALLS = 4


@pytest.fixture(params=ENTRIES)
def compiled(request):
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield ENTRIES[request.param]
    torch._dynamo.reset()


def _kinds(outputs):
    return [(t.is_inference(), t.requires_grad, t.is_leaf if t.requires_grad else None) for t in outputs]


def _mixed(x, w):
    product = x @ w
    return product, product.relu().t(), product, x, x.t(), w[0], x.detach(), (x > 0).sum()


def _check(fast, function, arguments, mode):
    for _call in range(CALLS):
        with mode():
            got, want = fast(*arguments), function(*arguments)
            torch.testing.assert_close(got, want)
        assert _kinds(got) == _kinds(want)
        for mine, theirs in zip(got, want, strict=True):
            same = [mine is a for a in arguments], [theirs is a for a in arguments]
            assert same[0] == same[1]


def test_inference_mode_gives_inference_tensors_from_the_first_call_on(compiled):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    fast, x = compiled(model), torch.randn(3, 4)
    for _call in range(CALLS):
        with torch.inference_mode():
            assert fast(x).is_inference()
        with torch.no_grad():
            assert not fast(x).is_inference()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_results_are_of_eagers_kinds(compiled, mode):
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    _check(compiled(_mixed), _mixed, (x, w), mode)


def test_views_of_inference_tensors_are_inference_tensors(compiled):
    with torch.inference_mode():
        x = torch.randn(3, 3)

    def function(x):
        return x.t(), x + 1, x[1:]

    _check(compiled(function), function, (x,), torch.no_grad)
    _check(compiled(function), function, (x,), torch.inference_mode)


def test_one_tensor_twice_among_the_results_stays_one(compiled):
    def function(x):
        y = x * 2
        return y, y, x.t(), [y]

    fast, x = compiled(function), torch.randn(2, 3)
    for _call in range(CALLS):
        with torch.inference_mode():
            first, second, _turned, (third,) = fast(x)
        assert first is second
        assert second is third
        assert first.is_inference()


@pytest.mark.parametrize("entry", ["staticrt.compile", "general path", "torch.compile"])
def test_a_view_of_an_argument_is_one_to_autograd(entry):
    torch._dynamo.reset()
    fast = ENTRIES[entry](lambda x: (x[0], x.view(-1).detach()))
    for _call in range(CALLS):
        x = torch.ones(2, 3)
        row, flat = fast(x)
        assert row._is_view()
        assert row._base is x
        w = torch.full((3,), 2.0, requires_grad=True)
        row.mul_(w)  # eager: x has a history from now on
        (grad,) = torch.autograd.grad(x.sum(), w)
        torch.testing.assert_close(grad, torch.ones(3))
        assert not flat.requires_grad


@pytest.mark.parametrize("entry", ["staticrt.compile", "general path", "torch.compile"])
def test_a_view_made_without_gradients_is_not_written_with_them(entry):
    torch._dynamo.reset()
    fast = ENTRIES[entry](lambda x: x[0])
    x = torch.ones(2, 3, requires_grad=True)
    for _call in range(CALLS):
        with torch.no_grad():
            row = fast(x)
        with pytest.raises(RuntimeError, match="no_grad"):
            row.mul_(2)


def test_a_literal_is_made_anew_in_each_call(compiled):
    def function(x):
        table = torch.tensor([1.0, 2.0])
        counts = torch.tensor([3.0, 4.0])
        counts += x
        return x + 1, table, counts, torch.tensor([[5, 6]]).t()

    fast, x = compiled(function), torch.ones(2)
    with torch.no_grad():
        for _call in range(CALLS):
            got = fast(x)
            torch.testing.assert_close(got, function(x))
            for tensor in got:
                tensor.zero_()


def test_an_array_among_the_results_is_the_callers_own_memory():
    array = np.array([1.0, 2.0], dtype=np.float32)
    fast = staticrt.compile(lambda x: (x + 1, torch.from_numpy(array), torch.tensor(array)))
    for _call in range(CALLS):
        _sum, shared, copied = fast(torch.ones(2))
        before = array.copy()
        copied.zero_()
        np.testing.assert_array_equal(array, before)
        shared.add_(1)
        np.testing.assert_array_equal(array, before + 1)


def test_gradients_switched_on_within_inference_mode_change_nothing(compiled):
    def function(x):
        with torch.enable_grad():
            return (x * 2).exp()

    fast, x = compiled(function), torch.randn(3, requires_grad=True)
    _check(lambda x: (fast(x),), lambda x: (function(x),), (x,), torch.inference_mode)


@torch.no_grad()
def test_a_pyramid_of_pooled_images_has_the_layout_of_eager():
    """Of one pixel a batch norm answers row-major, so that its enlargement, and what it is put next to, does too."""

    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(
                nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
                for size in (1, 2)
            )

        def forward(self, x):
            x = x.permute(0, 3, 1, 2)
            grown = [
                nn.functional.interpolate(part(x), size=x.shape[-2:], mode="bilinear") for part in self.parts
            ]
            return torch.cat([x, *grown], 1)

    model = Pyramid().eval()
    compiled = staticrt.compile(model)
    for sizes in ((1, 4, 6, 8), (2, 5, 4, 8)):
        x = torch.randn(*sizes)
        want, got = model(x), compiled(x)
        torch.testing.assert_close(got, want, check_stride=True)
