"""Fractional numbers computed from sizes: what a trace assumes of them is guarded, and nothing of torch's is needed."""

import math
import random

import pytest
import torch

import staticrt
from staticrt.shapes.size_env import NeedsShapeEnv, SizeEnv
from staticrt.shapes.size_nodes import new_size

SHAPES = [(4, 3), (5, 3), (8, 6), (3, 9), (1, 1), (2, 2), (4, 3)]


def number(rng, a, b, depth=3):
    """A random fractional number; raises what Python raises."""
    if depth == 0:
        return rng.choice((a / b, a / (2 * b), a * 0.5, float(rng.randint(1, 3)), b + 0.25, 1 / a))
    x, y = number(rng, a, b, depth - 1), number(rng, a, b, depth - 1)
    match rng.randrange(9):
        case 0:
            return x + y
        case 1:
            return x - y
        case 2:
            return x * y
        case 3:
            return x / y
        case 4:
            return max(x, y)
        case 5:
            return -x
        case 6:
            return x % y
        case 7:
            return math.floor(x) + y
        case _:
            return x if x < y else math.ceil(y) * 1.5


@pytest.mark.parametrize("seed", range(40))
def test_where_the_guards_hold_the_text_has_the_value(seed):
    env = SizeEnv()
    sizes = new_size(env, "a", 6, positive=True), new_size(env, "b", 4, positive=True)
    try:
        expected = number(random.Random(seed), 6, 4)
        result = number(random.Random(seed), *sizes)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            number(random.Random(seed), *sizes)
        return
    text = result.node.text if isinstance(result, torch.SymFloat) else repr(result)
    assert expected == (result.node.hint if isinstance(result, torch.SymFloat) else result)
    others = [(a, b) for a in range(1, 12) for b in range(1, 12)]
    names = {"math": math, "max": max, "min": min}
    held = []
    for a, b in others:
        try:
            if all(eval(guard, {**names, "a": a, "b": b}) for guard in env.guards):
                held.append((a, b))
        except ZeroDivisionError:  # a guard says so before
            continue
    assert (6, 4) in held
    for a, b in held:
        assert eval(text, {**names, "a": a, "b": b}) == number(random.Random(seed), a, b)


PROGRAMS = {
    "ratio": lambda x: x * (x.shape[0] / x.shape[1]),
    "greater": lambda x: x + max(x.shape[0] / x.shape[1], 1.0),
    "product below": lambda x: x + 1 if x.shape[0] / (2 * x.shape[1]) > 0.5 else x - 1,
    "rounded product below": lambda x: x.new_zeros(math.ceil(4 * x.shape[0] / (2 * x.shape[1])), 3) + x.sum(),
    "branch": lambda x: x + 1 if x.shape[0] / x.shape[1] > 1 else x - 1,
    "half": lambda x: x[: int(x.shape[0] * 0.5)],
    "floor": lambda x: x[: math.floor(x.shape[0] * 0.7)] * 2,
    "ceil": lambda x: x.new_zeros(math.ceil(x.shape[0] / 2), 3) + x.sum(),
    "root": lambda x: x / math.sqrt(x.shape[1]),
    "power": lambda x: x * x.shape[1] ** -0.5,
    "result": lambda x: (x * 2, x.shape[0] / x.shape[1]),
    "negative": lambda x: x * -(x.shape[0] / 2),
    "equal": lambda x: x + 1 if x.shape[0] / 2 == 2.0 else x * 3,
    "quotient": lambda x: x * ((x.shape[0] * 1.5) // 2),
    "mixed": lambda x: x * (1 - 1 / (x.shape[0] + 0.5)) + 2.0 / x.shape[1],
    "limit": lambda x: x.clamp(max=x.shape[0] / 9),
    "whole half": lambda x: x * 2 if (x.shape[0] / 2) % 1 == 0 else x * 3,
    "negative remainder": lambda x: x * 2 if (-x.shape[0] / 2) % 1 == 0 else x * 3,
    "whole root": lambda x: x * 2 if x.shape[0] ** 0.5 % 1 == 0 else x * 3,
    "root as a value": lambda x: x * x.shape[0] ** -0.5 + (x.shape[1] / 2) ** 1.5,
    "remainder by a fraction": lambda x: x * 2 if x.shape[0] % 1.5 == 0 else x * 3,
    "remainder of a number": lambda x: x * 2 if 7.5 % x.shape[0] == 0 else x * 3,
    "remainder as a value": lambda x: x * ((x.shape[0] / 3) % 0.75) + (-x.shape[0] / 3) % 0.7,
    "text": lambda x: x + len(f"{x.shape[0] / 3:.2f}"),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_answer_as_eager_does(program, monkeypatch):
    given_up = []
    give_up = SizeEnv.give_up
    monkeypatch.setattr(SizeEnv, "give_up", lambda env, what: (given_up.append(what), give_up(env, what)))
    compiled = staticrt.compile(program)
    with torch.no_grad():
        for shape in SHAPES:
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), program(x))
    assert not given_up
    assert not compiled.explain().eager


@torch.no_grad()
def test_a_ratio_of_sizes_serves_other_sizes():
    compiled = staticrt.compile(PROGRAMS["greater"])
    for shape in ((6, 3), (9, 4), (100, 7), (5, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), PROGRAMS["greater"](x))
    (trace,) = compiled.explain().traces
    assert trace.calls == 4


@pytest.mark.parametrize("name", ["ratio", "floor", "ceil"])
def test_gradients_and_archives(name, tmp_path):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(()))

        def forward(self, x):
            return PROGRAMS[name](x * self.weight)

    model = Scaled()
    compiled = staticrt.compile(model)
    for shape in SHAPES:
        x = torch.randn(shape)
        found, wanted = (torch.autograd.grad(f(x).sum(), model.weight) for f in (compiled, model))
        torch.testing.assert_close(found, wanted)
    staticrt.save(staticrt.compile(model.eval()), tmp_path / "model.pt2", example_inputs=(torch.randn(6, 3),))
    loaded = staticrt.load(tmp_path / "model.pt2")
    with torch.no_grad():
        for shape in ((4, 3), (5, 3), (9, 3)):
            x = torch.randn(shape)
            torch.testing.assert_close(loaded(x), model(x))


@torch.no_grad()
def test_a_division_by_a_size_of_zero_raises():
    def program(x):
        return x.sum() * (1 / x.shape[0])

    compiled = staticrt.compile(program)
    compiled(torch.randn(3, 2))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.randn(0, 2))
    x = torch.randn(5, 2)
    torch.testing.assert_close(compiled(x), program(x))


def test_what_no_float_can_hold_gives_up():
    for ask in (
        lambda a: a * math.inf,
        lambda a: a * math.nan,
        lambda a: (a * 1e200) * 1e200,
        lambda a: round(a * 0.5, 1),
    ):
        env = SizeEnv()
        with pytest.raises(NeedsShapeEnv):
            ask(new_size(env, "a", 4, positive=True))
        assert env.gave_up
