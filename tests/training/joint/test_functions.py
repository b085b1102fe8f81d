"""Custom autograd Functions in joint traces: their backward is recorded where it reads nothing that a call may change."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import staticrt
from tests.support.joint_traces import joint_calls, notes

FACTOR = 2.0
ROOT = math.sqrt(2 / math.pi)


class Settings:
    factor = 2.0


SETTINGS = Settings()


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    t = torch.tanh(ROOT * x * (1 + 0.044715 * x * x))
    return 0.5 * x * ((1 - t * t) * (ROOT + 0.1070322243 * x * x)) + 0.5 * (1 + t)


class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _gelu_slope(x) * g


class Straight(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Clipped(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high).round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gradient = g.clone()
        gradient[x < ctx.low] = 0
        gradient[x > ctx.high] = 0
        return gradient, None, None


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.alpha, None


class Swish(Function):
    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))


class Loss(Function):
    """The gradient is computed with the loss, as in fused losses."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            own = x.detach()
        ctx.save_for_backward(2 * own / own.numel())
        return (own * own).mean()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class Ignoring(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sign())
        return x.abs().sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0]


class Linear(Function):
    @staticmethod
    def forward(ctx, x, w, b=None):
        ctx.save_for_backward(x, w)
        return torch.nn.functional.linear(x, w, b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = g @ w
        if ctx.needs_input_grad[1]:
            dw = g.flatten(0, -2).t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            db = g.flatten(0, -2).sum(0)
        return dx, dw, db


class Top(Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, g, _places):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, places, g)


class Halves(Function):
    """Two results, of which one may get no gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        if g is None:
            return None if h is None else h * 3
        return g * 2 if h is None else g * 2 + h * 3


class Zeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        return (g + 2 * h + 1).view(ctx.shape)  # where no gradient arrives, zeros do


class Nothing(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


class Scaled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, g):
        return g * FACTOR


class Normed(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g / (g.norm() + 1)


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Swish.apply(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return Swish.apply(g * x)


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x.mul_(2).tanh_()

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y) * 2


class Written(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.clone()
        out[out < 0] *= 0.1
        ctx.save_for_backward(x < 0)
        return out

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, 0.1 * g, g)


class Base(Function):
    slope = 0.5

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sign() * Base.slope


class Inherited(Base):
    @staticmethod
    def forward(ctx, x):
        return Base.forward(ctx, x * 2)


class Vjp(Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def vjp(ctx, g):
        return g * ctx.saved_tensors[0]


class Cast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0]


class Several(Function):
    @staticmethod
    def forward(ctx, first, *rest):
        ctx.count = len(rest)
        ctx.shapes = [each.shape for each in rest]
        return first + sum(each.sum() for each in rest)

    @staticmethod
    def backward(ctx, g):
        return (g, *[g.sum().expand(shape) for shape in ctx.shapes])


class Plain(Function):
    @staticmethod
    def forward(ctx, number):
        return number * 2

    @staticmethod
    def backward(ctx, g):
        return None


# -- left to eager


class Keeping(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.x


class Reading(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * SETTINGS.factor


class Calling(Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.function(g), None


class Drawing(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


class Deciding(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g if g.sum() > 0 else -g


class Rerunning(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(x.sin(), x, g)[0]


class Counting(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        Counting.calls += 1
        return g * Counting.calls


class Popping(Function):
    """The second backward of a call differs from the first."""

    @staticmethod
    def forward(ctx, x):
        ctx.factors = [2.0, 3.0]
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors.pop()


class Setting(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0
        return x * 1

    @staticmethod
    def backward(ctx, g):
        ctx.factor += 1
        return g * ctx.factor


RECORDED = {
    "gelu": Gelu.apply,
    "straight through": lambda h: Straight.apply(h) * h,
    "clipped": lambda h: Clipped.apply(h, -1, 1.5),
    "reversed": lambda h: Reversed.apply(h, 0.3).sin(),
    "reversed, size": lambda h: Reversed.apply(h, h.shape[0]).sin(),
    "swish": Swish.apply,
    "loss": lambda h: Loss.apply(h) + h.sin(),
    "ignoring": lambda h: Ignoring.apply(h) + h.sin(),
    "sorted": lambda h: Top.apply(h)[0] * h,
    "first": lambda h: Halves.apply(h)[0].sin(),
    "second": lambda h: Halves.apply(h)[1].sin(),
    "both": lambda h: (lambda pair: pair[0].sin() * pair[1].cos())(Halves.apply(h)),
    "zeros": lambda h: Zeros.apply(h)[1] * 2,
    "nothing": lambda h: Nothing.apply(h) + h.sin(),
    "scaled": Scaled.apply,
    "normed": lambda h: Normed.apply(h).exp(),
    "nested": Nested.apply,
    "in place": lambda h: InPlace.apply(h * 1) * h,
    "written": Written.apply,
    "base": Base.apply,
    "inherited": Inherited.apply,
    "vjp": Vjp.apply,
    "cast": Cast.apply,
    "several": lambda h: Several.apply(h, h[0], h[:, :1]),
    "twice": lambda h: Gelu.apply(Gelu.apply(h) + Swish.apply(h)),
    "no tensors": lambda h: h * Plain.apply(3),
}
LEFT = {
    "keeping": (Keeping.apply, "keeps tensors"),
    "reading": (Reading.apply, "reads SETTINGS"),
    "calling": (lambda h: Calling.apply(h, torch.sin), "keeps an object"),
    "drawing": (Drawing.apply, "its backward calls"),
    "deciding": (Deciding.apply, "data"),
    "rerunning": (Rerunning.apply, "reads"),
    "counting": (Counting.apply, "reads Counting"),
    "popping": (Popping.apply, "changes its context"),
    "setting": (Setting.apply, "changes factor"),
    "a view": (lambda h: Reversed.apply(h, 0.3), ""),
}


class Model(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.first, self.last, self.part = nn.Linear(6, 5), nn.Linear(5, 3), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.part(self.first(x)))


class Own(nn.Module):
    """A layer by a Function, of which parameters may be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Linear.apply(x, self.w, self.b)


def _steps(model: nn.Module, run: Any, rows: tuple[int, ...] = (4, 4, 7, 2, 7), **options: Any) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    found = []
    for step, count in enumerate(rows):
        x = torch.randn(count, 6, generator=torch.Generator().manual_seed(step))
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        found.append(
            [loss.detach(), *[p.grad if p.grad is None else p.grad.clone() for p in model.parameters()]]
        )
        optimizer.step()
    return found


def _same(part: Any, prepare: Any = None) -> Any:
    torch.manual_seed(0)
    model = Model(part)
    if prepare is not None:
        prepare(model)
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model, joint_trace=True)
    got = _steps(model, compiled)
    Counting.calls = 0
    torch.testing.assert_close(got, _steps(eager, eager), rtol=1e-4, atol=1e-5)
    return compiled


@pytest.mark.parametrize("name", RECORDED)
def test_a_function_is_recorded(name: str) -> None:
    compiled = _same(RECORDED[name])
    assert joint_calls(compiled) == 5, notes(compiled)


@pytest.mark.parametrize("name", LEFT)
def test_a_function_that_depends_on_more_runs_eagerly(name: str) -> None:
    Counting.calls = 0
    part, reason = LEFT[name]
    compiled = _same(part) if name != "a view" else staticrt.compile(part, joint_trace=True)
    if name == "a view":
        x = torch.randn(3, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), -0.3))
    assert not joint_calls(compiled)
    assert reason in notes(compiled), notes(compiled)


@pytest.mark.parametrize("frozen", ["part.w", "part.b", "first.weight"])
def test_a_function_sees_which_gradients_are_needed(frozen: str) -> None:
    compiled = _same(Own(), lambda model: model.get_parameter(frozen).requires_grad_(False))
    assert joint_calls(compiled) == 5, notes(compiled)


def test_a_model_whose_own_state_changed_before_its_backward_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's backward would combine what was saved with the new state, which no other run gives."""
    compiled = staticrt.compile(lambda x: Scaled.apply(x).sin(), joint_trace=True)
    x = torch.linspace(0, 1, 4, requires_grad=True)
    out = compiled(x).sum()
    monkeypatch.setattr(f"{__name__}.FACTOR", 5.0)
    with pytest.raises(RuntimeError, match="state has changed"):
        out.backward()
    out = compiled(x).sum()
    out.backward()
    torch.testing.assert_close(x.grad, 5 * (5 * x.detach()).cos())


class Later(Function):
    """Only its backward reads the factor."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * FACTOR


def test_a_backward_uses_the_state_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = staticrt.compile(lambda x: Later.apply(x).sin(), joint_trace=True)
    for before, after in ((2.0, 2.0), (2.0, 5.0), (5.0, 5.0), (5.0, 2.0)):
        monkeypatch.setattr(f"{__name__}.FACTOR", before)
        x = torch.linspace(0, 1, 4, requires_grad=True)
        out = compiled(x).sum()
        monkeypatch.setattr(f"{__name__}.FACTOR", after)
        out.backward()
        torch.testing.assert_close(x.grad, after * (2 * x.detach()).cos())
    assert joint_calls(compiled) == 4, notes(compiled)


def test_a_replaced_backward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = staticrt.compile(lambda x: Later.apply(x).sin(), joint_trace=True)
    for factor in (2, 7, 7):
        monkeypatch.setattr(Later, "backward", staticmethod(lambda ctx, g, factor=factor: g * factor))
        x = torch.linspace(0, 1, 4, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, factor * (2 * x.detach()).cos())


PAIRS = {
    "halves": lambda x: Halves.apply(x * 2),
    "zeros": lambda x: Zeros.apply(x * 2),
    "in one branch": lambda x: (Ignoring.apply(x), x.sin()),
    "in the other": lambda x: (Ignoring.apply(x), x.sin() + Zeros.apply(x)[0]),
    "loss and scores": lambda x: (lambda h: (Loss.apply(h), h * 2))(Gelu.apply(x)),
    "nothing": lambda x: (
        (Nothing.apply(x.sin()) * Zeros.apply(x)[0]).sum(),
        Zeros.apply(Nothing.apply(x.exp()) + 1)[0],
    ),
}


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", PAIRS)
def test_results_without_a_gradient(name: str, wanted: tuple[int, ...]) -> None:
    function = PAIRS[name]
    compiled = staticrt.compile(lambda x: function(x), joint_trace=True)
    for rows in (3, 3, 5):
        found = []
        for run in (compiled, function):
            x = torch.linspace(-1, 1, 4 * rows).view(rows, 4).requires_grad_()
            outs = run(x)
            sum(outs[i].sum() for i in wanted).backward()
            found.append((*(out.detach() for out in outs), x.grad))
        torch.testing.assert_close(*found)
    assert joint_calls(compiled) == 3, notes(compiled)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", [*RECORDED])
def test_second_derivatives_are_those_of_the_function(name: str, together: bool) -> None:
    torch.manual_seed(0)
    model = Model(RECORDED[name])
    compiled = staticrt.compile(model, joint_trace=True)
    found = []
    for run in (compiled, model):
        x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
        model.zero_grad()
        try:
            loss = run(x).square().sum()
            (slope,) = torch.autograd.grad(loss, x, create_graph=True, allow_unused=True)
            if slope is not None:
                (slope.square().sum() + (loss if together else 0)).backward()
            found.append((slope, [p.grad for p in model.parameters()]))
        except RuntimeError as error:
            found.append(str(error))
    if (
        name == "normed"
    ):  # not linear in the gradient of its result, which also the derivative of the square reaches
        assert "cannot differentiate" in found[0]
    elif isinstance(found[1], str):
        assert found[0] == found[1]
    else:
        torch.testing.assert_close(*found)


class Limited(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.3, 0.3)


@pytest.mark.parametrize(
    "loss",
    [
        lambda run, y, slope, z: run(z).mean() - run(-z).mean() + slope.square().sum(),
        lambda run, y, slope, z: [y.sum(), slope.square().sum(), y.sum(), slope.sum()],
        lambda run, y, slope, z: (
            torch.autograd.grad(slope.square().sum(), z, create_graph=True)[0].square().sum()
        ),
    ],
    ids=["other calls", "one after another", "third"],
)
def test_second_derivatives_of_functions_that_are_not_linear(loss: Any) -> None:
    torch.manual_seed(0)
    model = Model(lambda h: Limited.apply(h).tanh().square())
    compiled = staticrt.compile(model, joint_trace=True)
    found = []
    for run in (compiled, model):
        model.zero_grad()
        x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
        y = run(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        parts = loss(run, y, slope, x)
        for part in parts if isinstance(parts, list) else [parts]:
            part.backward(retain_graph=True)
        found.append((slope, x.grad, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*found)
    assert joint_calls(compiled), notes(compiled)


def test_a_second_derivative_leaves_running_statistics_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), Model(Gelu.apply).last, nn.Linear(3, 3))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Gelu.apply(self.body(x))

    whole = Whole()
    eager = copy.deepcopy(whole)
    compiled = staticrt.compile(whole, joint_trace=True)
    found = []
    for run, own in ((compiled, whole), (eager, eager)):
        for _ in range(2):
            x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
            (slope,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
            slope.square().sum().backward()
        found.append((slope, [p.grad for p in own.parameters()], [*own.buffers()]))
    torch.testing.assert_close(*found)
    assert joint_calls(compiled) == 2
