"""Custom autograd Functions whose backward reads what a caller can change after the forward, or between two calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function

import staticrt
from tests.support.joint_traces import joint_calls, notes

FACTOR = 2.0


def _double(g: torch.Tensor) -> torch.Tensor:
    return g * 2


def _triple(g: torch.Tensor, factor: float = 3.0, *, by: float = 1.0) -> torch.Tensor:
    return g * factor * by


HELPER = _double


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1


class Helped(Once):
    @staticmethod
    def backward(ctx, g):
        return HELPER(g)


class Defaulted(Once):
    @staticmethod
    def backward(ctx, g):
        return _triple(g)


class Scaled(Once):
    @staticmethod
    def backward(ctx, g):
        return g * FACTOR


class Listed(Function):
    @staticmethod
    def forward(ctx, x, factors):
        ctx.factors = factors
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors[0], None


class Nested(Function):
    @staticmethod
    def forward(ctx, x, factors):
        ctx.factors = (1, factors)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors[1][0], None


class OwnList(Function):
    @staticmethod
    def forward(ctx, x, factors):
        ctx.factors = [each + 1 for each in factors], [*factors]
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors[0][0] * ctx.factors[1][0], None


class Attribute(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * w * w.scale, None


class Version(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * w * w._version, None


class OfClass(Once):
    factor = 1.0

    @staticmethod
    def backward(ctx, g):
        return g * ctx._forward_cls.factor


class Strides(Once):
    @staticmethod
    def backward(ctx, g):
        return g * (1.0 + g.stride(0))


Change = Callable[[int], None]


def _gradients(
    run: Any, change: Change, between: Change, args: Callable[[int], tuple[Any, ...]] = lambda _step: ()
) -> list[torch.Tensor]:
    found = []
    for step in range(4):
        change(step)
        x = torch.ones(3, 4, requires_grad=True)
        given = args(step)
        y = run(x, *given)
        between(step)
        y.sum().backward()
        assert x.grad is not None
        found.append(x.grad)
    return found


def _set(name: str, values: list[Any], monkeypatch: pytest.MonkeyPatch) -> Change:
    return lambda step: monkeypatch.setitem(globals(), name, values[step % len(values)])


def _nothing(_step: int) -> None:
    pass


@pytest.mark.parametrize("is_between", [False, True])
def test_a_helper_that_is_replaced(is_between: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return Helped.apply(x.tanh())

    first = _set("HELPER", [_double, _triple], monkeypatch)
    second = _set("HELPER", [_triple, _double], monkeypatch) if is_between else _nothing
    compiled = staticrt.compile(model, joint_trace=True)
    torch.testing.assert_close(_gradients(compiled, first, second), _gradients(model, first, second))
    assert joint_calls(compiled) == 4, notes(compiled)


@pytest.mark.parametrize("is_keyword", [False, True])
@pytest.mark.parametrize("is_between", [False, True])
def test_defaults_of_a_helper_that_are_replaced(
    is_between: bool, is_keyword: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return Defaulted.apply(x.tanh())

    def change(step: int) -> None:
        if is_keyword:  # in place
            monkeypatch.setitem(_triple.__kwdefaults__, "by", float(step))
        else:
            monkeypatch.setattr(_triple, "__defaults__", (float(step),))

    first, second = (_nothing, change) if is_between else (change, _nothing)
    compiled = staticrt.compile(model, joint_trace=True)
    torch.testing.assert_close(_gradients(compiled, first, second), _gradients(model, first, second))
    assert joint_calls(compiled) == 4, notes(compiled)


def test_a_number_that_is_computed_anew_needs_no_other_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x.tanh())

    compiled = staticrt.compile(model, joint_trace=True)
    for step in range(4):
        monkeypatch.setitem(globals(), "FACTOR", float(f"0.{3 + step // 3}"))
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert joint_calls(compiled) == 4, notes(compiled)
    assert "2 traced graphs" in str(compiled.explain())


@pytest.mark.parametrize("kind", [Listed, Nested])
def test_a_list_that_others_can_change(kind: Any) -> None:
    factors = [2.0]

    def model(x: torch.Tensor, given: list[float] = factors) -> torch.Tensor:
        return kind.apply(x.tanh(), given)

    def between(step: int) -> None:
        factors[0] = float(step)

    for args in (lambda _step: (), lambda _step: (factors,)):
        compiled = staticrt.compile(model, joint_trace=True)
        torch.testing.assert_close(
            _gradients(compiled, _nothing, between, args), _gradients(model, _nothing, between, args)
        )
        assert "a list that others can change" in notes(compiled)


def test_lists_that_only_the_context_has_are_recorded() -> None:
    def model(x: torch.Tensor, given: list[float]) -> torch.Tensor:
        return OwnList.apply(x.tanh(), given)

    compiled = staticrt.compile(model, joint_trace=True)
    args = lambda step: ([2.0 + step],)  # noqa: E731
    torch.testing.assert_close(
        _gradients(compiled, _nothing, _nothing, args), _gradients(model, _nothing, _nothing, args)
    )
    assert joint_calls(compiled) == 4, notes(compiled)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Attribute, "reads scale of a tensor"), (Version, "reads _version")]
)
def test_what_a_saved_tensor_carries(kind: Any, reason: str) -> None:
    w = torch.full((4,), 2.0)

    def model(x: torch.Tensor) -> torch.Tensor:
        return kind.apply(x.tanh(), w)

    def change(step: int) -> None:
        w.scale = float(step)  # type: ignore[attr-defined]
        w.add_(0)

    compiled = staticrt.compile(model, joint_trace=True)
    got = _gradients(compiled, change, _nothing)
    if kind is Attribute:
        torch.testing.assert_close(got, _gradients(model, change, _nothing))
    else:
        assert len({float(each[0, 0]) for each in got}) == 4
    assert reason in notes(compiled)


def test_an_attribute_of_the_class_that_the_context_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return OfClass.apply(x.tanh())

    def change(step: int) -> None:
        monkeypatch.setattr(OfClass, "factor", float(step))

    compiled = staticrt.compile(model, joint_trace=True)
    torch.testing.assert_close(_gradients(compiled, _nothing, change), _gradients(model, _nothing, change))
    assert "reads _forward_cls" in notes(compiled)


def test_the_strides_of_a_gradient() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return Strides.apply(x.tanh())

    compiled = staticrt.compile(model, joint_trace=True)
    for gradient in (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(1, 1).expand(3, 4)):
        found = []
        for run in (compiled, model):
            x = torch.ones(3, 4, requires_grad=True)
            run(x).backward(gradient)
            found.append(x.grad)
        torch.testing.assert_close(*found)
    assert "reads stride" in notes(compiled)
