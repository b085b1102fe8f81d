"""What makes Dynamo take a compiled region again, compile another one, or leave the backend out."""

import gc

import pytest
import torch
from torch import nn

import staticrt.training


def _regions():
    gc.collect()  # of what earlier tests compiled, nothing may go in the midst of this one
    return len(staticrt.training.debug_state())


def function(x, w):
    return torch.tanh(x @ w).square()


def _differentiate(run, x, w):
    inputs = [t for t in (x, w) if t.requires_grad]
    return torch.autograd.grad(run(x, w).sum(), inputs)


@pytest.mark.parametrize(
    ("change", "regions"),
    [
        (lambda x, w: (x.clone(), w), 1),  # another tensor of the same kind
        (lambda x, w: (x.t().contiguous().t(), w), 2),  # strides
        (lambda x, w: (x.double(), w.detach().double().requires_grad_()), 2),
        (lambda x, w: (x.detach().requires_grad_(), w), 2),
        (lambda x, w: (x.unsqueeze(0), w), 2),  # rank
        (lambda x, w: (x[:2], w), 2),  # a size, which is a symbol from then on
    ],
)
def test_key_rules(compiler, change, regions):
    compiled = compiler(function)
    before = _regions()
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    _differentiate(compiled, x, w)
    changed = change(x, w)
    for arguments in (changed, (x, w), changed):
        torch.testing.assert_close(_differentiate(compiled, *arguments), _differentiate(function, *arguments))
    assert _regions() - before == regions


def test_a_size_that_changed_once_may_change_freely(compiler):
    compiled = compiler(function)
    before = _regions()
    w = torch.randn(4, 4, requires_grad=True)
    for rows in (3, 5, 7, 11, 13):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(_differentiate(compiled, x, w), _differentiate(function, x, w))
    assert _regions() - before == 2


def test_eager_stance_leaves_the_backend_out(compiler):
    compiled = compiler(function)
    before = _regions()
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    with torch.compiler.set_stance("force_eager"):
        got = _differentiate(compiled, x, w)
    assert _regions() == before
    torch.testing.assert_close(_differentiate(compiled, x, w), got)
    assert _regions() == before + 1


def test_beyond_the_limit_of_recompilations_calls_run_eagerly(compiler):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.power = nn.Parameter(torch.randn(4)), "0"

        def forward(self, x):
            return x * self.weight + len(self.power)

    model = Scaled()
    compiled = compiler(model)
    before = _regions()
    x = torch.randn(3, 4)
    with torch._dynamo.config.patch(recompile_limit=2):
        for power in ("a", "bb", "ccc", "dddd"):
            model.power = power
            out = compiled(x)
            torch.testing.assert_close(out, x * model.weight + len(power))
            (got,) = torch.autograd.grad(out.sum(), model.weight)
            torch.testing.assert_close(got, x.sum(0))
    assert _regions() - before == 2


def test_a_reset_forgets_regions_and_they_are_made_again(compiler):
    compiled = compiler(function)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    want = _differentiate(function, x, w)
    for _ in range(2):
        torch.testing.assert_close(_differentiate(compiled, x, w), want)
        torch._dynamo.reset()


@pytest.mark.skipif(torch.__version__ < "2.12", reason="older Dynamo counts recompilations by code only")
def test_each_model_of_a_class_has_a_limit_of_its_own():
    class Layer(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.inner = nn.Linear(size, size)

        def forward(self, x):
            return torch.tanh(self.inner(x))

    x = torch.randn(3, 4)
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(5):
            model = Layer(4)
            compiled = staticrt.compile(model, joint_trace=False)
            before = _regions()
            torch.testing.assert_close(compiled(x), model(x))
            assert _regions() == before + 1
            assert not compiled.explain().eager


def test_dynamo_is_set_for_us_only_while_it_compiles():
    """What the model does, and what it compiles by itself, sees Dynamo as its caller set it."""
    seen = []
    inner = torch.compile(lambda x: x.sin() + x.size(0), backend="eager", dynamic=False)

    @torch.compiler.disable
    def note():
        config = torch._dynamo.config
        seen.append((config.suppress_errors, config.recompile_limit, config.trace_numpy))

    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            y = self.inner(x).tanh()
            note()
            return inner(y)

    model = Noting()
    compiled = staticrt.compile(model, max_traces=3)
    config = torch._dynamo.config
    with torch._dynamo.config.patch(recompile_limit=5):
        want = config.suppress_errors, config.recompile_limit, config.trace_numpy
        for rows in (2, 3):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), model.inner(x).tanh().sin() + rows)
    assert seen == [want] * 2
    assert staticrt.training.debug_state()[-1]["node"] == "native"
