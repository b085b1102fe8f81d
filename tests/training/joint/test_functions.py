"""Custom autograd Functions in joint traces: their backward is recorded where it reads nothing that a call may change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function

import staticrt
from tests.support.joint_traces import joint_calls, notes
from tests.training.joint.recorded_functions import (
    RECORDED,
    Gelu,
    Halves,
    Ignoring,
    Later,
    Linear,
    Loss,
    Nothing,
    Scaled,
    Zeros,
)
from tests.training.joint.unrecorded_functions import LEFT, Counting

_FACTOR = "tests.training.joint.recorded_functions.FACTOR"


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
    monkeypatch.setattr(_FACTOR, 5.0)
    with pytest.raises(RuntimeError, match="state has changed"):
        out.backward()
    out = compiled(x).sum()
    out.backward()
    torch.testing.assert_close(x.grad, 5 * (5 * x.detach()).cos())


def test_a_backward_uses_the_state_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = staticrt.compile(lambda x: Later.apply(x).sin(), joint_trace=True)
    for before, after in ((2.0, 2.0), (2.0, 5.0), (5.0, 5.0), (5.0, 2.0)):
        monkeypatch.setattr(_FACTOR, before)
        x = torch.linspace(0, 1, 4, requires_grad=True)
        out = compiled(x).sum()
        monkeypatch.setattr(_FACTOR, after)
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
