"""Operators of libraries whose derivative is registered in Python: recorded where the formula depends on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.support.joint_traces import joint, joint_calls, notes

Formula = Callable[..., Any]


class Settings:
    factor = 2.0


FACTOR = 2.0
OPERATOR = torch.ops.aten.sin.default
SETTINGS = Settings()
EVENTS: list[str] = []


class Operators:
    """x -> x * k, and an operator for its gradient; both note their runs."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library = library
        library.define("scaled(Tensor x, float k) -> Tensor")
        library.define("scaled_backward(Tensor g, Tensor x, float k) -> Tensor")
        for name, kernel in (
            ("scaled", lambda x, k: x * k),
            ("scaled_backward", lambda g, x, k: g * k + x * 0),
        ):

            def run(*args: Any, name: str = name, kernel: Formula = kernel) -> torch.Tensor:
                EVENTS.append(name)
                return kernel(*args)

            library.impl(name, run, "CompositeExplicitAutograd")
            library.impl(name, lambda x, *_rest: torch.empty_like(x), "Meta")

    def register(self, formula: Formula) -> None:
        torch.library.register_autograd(
            "staticrt_formulas::scaled", formula, setup_context=_save, lib=self._library
        )


def _save(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.k, ctx.output = inputs[1], output


def _by_operator(ctx: Any, gradient: torch.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return torch.ops.staticrt_formulas.scaled_backward(gradient, x, ctx.k) + ctx.output * 0, None


def _by_torch(ctx: Any, gradient: torch.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return torch.stack([gradient * ctx.k for _ in range(1)])[0] + 0 * x.sum(), None


def _with_helper(ctx: Any, gradient: torch.Tensor) -> Any:
    return _product(gradient, ctx.k), None


def _product(a: torch.Tensor, k: float) -> torch.Tensor:
    return a * k * FACTOR


def _with_default(ctx: Any, gradient: torch.Tensor, settings: Any = SETTINGS) -> Any:
    return gradient * ctx.k * settings.factor, None


def _with_torchs_state(ctx: Any, gradient: torch.Tensor) -> Any:
    return gradient * ctx.k * torch.get_default_dtype().itemsize, None


def _with_global(ctx: Any, gradient: torch.Tensor) -> Any:
    return gradient * ctx.k * FACTOR, None


def _with_attribute(ctx: Any, gradient: torch.Tensor) -> Any:
    return gradient * ctx.k * SETTINGS.factor, None


def _with_cell() -> Formula:
    settings = SETTINGS

    def formula(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.k * settings.factor, None

    return formula


def _with_global_operator(ctx: Any, gradient: torch.Tensor) -> Any:
    return OPERATOR(gradient) * ctx.k, None


def _with_effect(ctx: Any, gradient: torch.Tensor) -> Any:
    EVENTS.append("formula")
    return gradient * ctx.k, None


RECORDED: dict[str, Formula] = {
    "operator": _by_operator,
    "operators of torch": _by_torch,
    "global": _with_global,
    "helper": _with_helper,
}
LEFT: dict[str, Formula] = {
    "attribute": _with_attribute,
    "cell": _with_cell(),
    "effect": _with_effect,
    "default": _with_default,
    "torch's state": _with_torchs_state,
}


@pytest.fixture
def operators() -> Iterator[Operators]:
    with torch.library._scoped_library("staticrt_formulas", "FRAGMENT") as library:
        yield Operators(library)


def _model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.ops.staticrt_formulas.scaled(x * w, 3.0) + x).sin()


def _same(compiled: Formula, rows: int, only_x: bool = False) -> None:
    found = []
    for function in (compiled, _model):
        torch.manual_seed(rows)
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, requires_grad=not only_x)
        EVENTS.clear()
        result = function(x, w)
        result.sum().backward()
        found.append((result.detach(), x.grad, w.grad, list(EVENTS)))
    torch.testing.assert_close(found[0][:3], found[1][:3])
    assert found[0][3] == found[1][3]


@pytest.mark.parametrize("name", RECORDED)
def test_a_formula_is_recorded(operators: Operators, name: str) -> None:
    operators.register(RECORDED[name])
    compiled = joint(_model)
    for rows in (3, 3, 5, 1, 5):
        _same(compiled, rows)
    _same(compiled, 5, only_x=True)
    assert joint_calls(compiled) == 6, notes(compiled)


@pytest.mark.parametrize("name", LEFT)
def test_a_formula_that_depends_on_more_runs_eagerly(
    operators: Operators, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators.register(LEFT[name])
    compiled = joint(_model)
    _same(compiled, 3)
    monkeypatch.setattr(f"{__name__}.FACTOR", 5.0)
    monkeypatch.setattr(SETTINGS, "factor", 5.0)
    _same(compiled, 3)
    assert not joint_calls(compiled)
    assert "a custom autograd Function" in notes(compiled)


def test_an_operator_of_another_name_is_noticed(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators.register(_with_global_operator)
    compiled = joint(_model)
    for operator in (OPERATOR, torch.ops.aten.cos.default):
        monkeypatch.setattr(f"{__name__}.OPERATOR", operator)
        for rows in (3, 5, 3):
            _same(compiled, rows)
    assert joint_calls(compiled) == 6, notes(compiled)


def test_a_replaced_formula_is_noticed() -> None:
    with torch.library._scoped_library("staticrt_formulas", "FRAGMENT"):

        @torch.library.custom_op("staticrt_formulas::replaced", mutates_args=())
        def replaced(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        replaced.register_fake(torch.empty_like)
        compiled = joint(lambda x: replaced(x).sin())
        for factor in (2, 7):
            formula = (lambda ctx, g: g * 2) if factor == 2 else (lambda ctx, g: g * 7)
            replaced.register_autograd(formula)
            for _ in range(2):
                x = torch.ones(3, requires_grad=True)
                compiled(x).sum().backward()
                torch.testing.assert_close(x.grad, torch.full((3,), 2.0).cos() * factor)
        assert joint_calls(compiled) == 4


def test_a_formula_of_an_operator_with_lists_of_tensors_is_recorded_and_compared() -> None:
    with torch.library._scoped_library("staticrt_formulas", "FRAGMENT"):

        @torch.library.custom_op("staticrt_formulas::scaled_parts", mutates_args=())
        def scaled_parts(tensors: list[torch.Tensor], k: float) -> list[torch.Tensor]:
            return [each * k for each in tensors]

        scaled_parts.register_fake(lambda tensors, k: [torch.empty_like(each) for each in tensors])
        save = lambda ctx, inputs, output: ctx.save_for_backward(*output)  # noqa: E731

        def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            first, second, last = scaled_parts([x.sin(), w, x * w], 3.0)
            return (first * second).exp() + last[:1]

        compiled = joint(model)
        for factor in (1, 5):
            scaled_parts.register_autograd(
                lambda ctx, g, k=factor: (
                    [each * part.cos() * k for each, part in zip(g, ctx.saved_tensors, strict=True)],
                    None,
                ),
                setup_context=save,
            )
            for rows, needs in ((3, (True, True)), (3, (True, True)), (5, (True, False)), (4, (False, True))):
                results = []
                for function in (model, compiled):
                    torch.manual_seed(rows)
                    x, w = torch.randn(rows, 4), torch.randn(4)
                    given = [t.requires_grad_() for t, need in zip((x, w), needs, strict=True) if need]
                    first = torch.autograd.grad(function(x, w).square().sum(), given, create_graph=True)
                    second = torch.autograd.grad(sum(g.square().sum() for g in first), given)
                    results.append((*first, *second))
                torch.testing.assert_close(*results)
        assert joint_calls(compiled) == 8, notes(compiled)


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scaled = torch.ops.staticrt_formulas.scaled(x, 3.0)
    scaled.mul_(x * w)
    return scaled * x


def _conjugate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.ops.staticrt_formulas.scaled(torch.complex(x, x * w).conj(), 3.0) * x).abs()


@pytest.mark.parametrize("model", [_model, _written, _conjugate])
def test_second_derivatives_equal_eager(operators: Operators, model: Formula) -> None:
    operators.register(_by_torch)
    found = []
    for function in (joint(model), model):
        x = torch.linspace(0.1, 1, 8).view(2, 4).requires_grad_()
        (first,) = torch.autograd.grad(function(x, x[0]).sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.pow(2).sum(), x)))
    torch.testing.assert_close(found[0], found[1])
