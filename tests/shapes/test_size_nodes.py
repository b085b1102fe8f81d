"""Symbolic sizes without sympy: what a trace assumes is guarded, what they cannot answer ends the attempt."""

import random

import pytest
import torch

from staticrt.shapes.size_checks import statically_known_true
from staticrt.shapes.size_env import NeedsShapeEnv, SizeEnv
from staticrt.shapes.size_nodes import new_size


def sizes_of(env, **values):
    return [new_size(env, name, value, positive=True) for name, value in values.items()]


def guards_hold(env, values):
    return all(eval(guard, {"max": max, "min": min, **values}) for guard in env.guards)


DIVISIONS = ["comes out even", "leaves", "needs padding", "divides"]


def wander(generator, numbers):
    """A run of a model over sizes: what it computes, and which way it went. The same generator asks the same."""
    path = []
    values = list(numbers)
    for _ in range(8):
        kind = generator.choice(
            ["+", "*", "//", "%", "max", "min", "<", "==", "!=", "both", "either", "not", "if", *DIVISIONS]
        )
        a, b = generator.choice(values), generator.choice(values)
        number = generator.choice([1, 2, 3, 4, 8])
        if kind == "+":
            values.append(a + number - b)
        elif kind == "*":
            values.append(a * b)
        elif kind == "//":
            values.append(a // number)
        elif kind == "%":
            values.append((a + b) % number)
        elif kind == "max":
            values.append(torch.sym_max(a, b))
        elif kind == "min":
            values.append(torch.sym_min(a, number))
        elif kind == "<":
            path.append(bool(a < b))
        elif kind == "==":
            path.append(bool(a == number))
        elif kind == "!=":
            path.append(bool(a != b))
        elif kind == "both":
            path.append(bool((a >= number) & (b <= a)))
        elif kind == "either":
            path.append(bool((a > b) | (b == number)))
        elif kind == "comes out even":
            path.append(bool((a * 3 + b) % number == 0))
        elif kind == "leaves":
            path.append(bool(a % number == 1))
        elif kind == "needs padding":
            values.append((number - a % number) % number)
            path.append(bool(values[-1] > 0))
        elif kind == "divides":
            path.append(bool(b != 0) and bool(a % b == 0))
        elif kind == "not":
            path.append(bool(torch.sym_not(a >= b)))
        else:
            path.append(bool(a))
    return values, path


@pytest.mark.parametrize("seed", range(150))
def test_guards_keep_every_later_call_on_the_path(seed):
    """Where the guards hold, other sizes give the same answers to every question, and the expressions their numbers."""
    hints = random.Random(seed)
    first = {name: hints.choice([1, 2, 3, 4, 6, 8, 12]) for name in ("a", "b", "c")}
    env = SizeEnv()
    try:
        values, path = wander(random.Random(seed), sizes_of(env, **first))
    except NeedsShapeEnv:
        assert (seed, env.gave_up) == (99, "a long expression of sizes")
        return
    assert seed != 99, "its remainders of products have a text of 6 MB"
    assert guards_hold(env, first)
    plain, plain_path = wander(random.Random(seed), first.values())
    assert path == plain_path
    assert [v.node.hint if isinstance(v, torch.SymInt) else v for v in values] == plain
    for _ in range(60):
        other = {name: hints.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 13]) for name in first}
        if not guards_hold(env, other):
            continue
        plain, plain_path = wander(random.Random(seed), other.values())
        assert path == plain_path, (other, list(env.guards))
        for value, number in zip(values, plain, strict=True):
            expr = value.node.expr if isinstance(value, torch.SymInt) else None
            assert (value if expr is None else expr.value(other)) == number, (other, list(env.guards))


def test_equal_sizes_become_one():
    env = SizeEnv()
    a, b = sizes_of(env, a=4, b=4)
    assert a == b
    assert list(env.guards) == ["a == b"]
    assert a.node.expr == b.node.expr
    assert int(a) == 4
    assert b.node.maybe_as_int() == 4
    c = new_size(env, "c", 9, positive=True)
    assert c == a * 2 + 1
    assert (c - 9).node.maybe_as_int() == 0


def test_windows_of_a_multiple_make_up_the_size():
    env = SizeEnv()
    h, w = sizes_of(env, h=56, w=28)
    assert h % 7 == 0
    assert not (7 - w % 7) % 7 > 0
    assert list(env.guards) == ["(h % 7) == 0", "((6*w) % 7) <= 0"]
    windows = (h // 7) * (w // 7)
    assert statically_known_true(windows * 49 == h * w)
    assert statically_known_true((h + 6) // 7 == h // 7)
    assert statically_known_true(h // 7 >= 1)
    assert (h // 14) * 2 == h // 7  # one more guard, that of an even number of windows
    assert len(env.guards) == 3
    assert statically_known_true(h % 14 == 0)
    assert windows.node.expr.value({"h": 70, "w": 21}) == 30


def test_padding_of_two_sides_is_none_where_their_sum_is():
    env = SizeEnv()
    h, w = sizes_of(env, h=16, w=8)
    assert not (-h) % 8 + (-w) % 4 > 0
    assert statically_known_true(h % 8 == 0)
    assert statically_known_true((w // 4) * 4 == w)
    assert len(env.guards) == 1


def test_what_an_operation_equals_is_learned():
    env = SizeEnv()
    (h,) = sizes_of(env, h=31)
    pooled = (h - 1) // 2 + 1
    assert pooled % 8 == 0
    assert statically_known_true((pooled // 8) * 8 == pooled)
    assert statically_known_true((pooled - 1) // 2 + 1 == pooled // 2)
    assert pooled == 16
    assert (pooled // 8).node.maybe_as_int() == 2
    assert all(eval(guard, {"h": 32}) for guard in env.guards)
    assert not all(eval(guard, {"h": 33}) for guard in env.guards)


def test_what_is_learned_reaches_sizes_made_before():
    """Windows of seven on each level of a pyramid, the next level of which was asked for first."""
    env = SizeEnv()
    (h,) = sizes_of(env, h=56)
    assert h % 7 == 0
    two_below = (h + 3) // 4
    below = (h + 1) // 2
    assert below % 7 == 0
    assert ((below + 1) // 2) % 14 == 0
    assert statically_known_true((below + 1) // 2 == two_below)
    assert statically_known_true((two_below // 14) * 14 == two_below)
    assert all(eval(guard, {"h": 56}) for guard in env.guards)


def test_a_multiple_of_another_size():
    env = SizeEnv()
    rows, groups = sizes_of(env, rows=12, groups=4)
    assert rows % groups == 0
    assert statically_known_true((rows // groups) * groups == rows)
    assert (rows // groups).node.expr.value({"rows": 30, "groups": 6}) == 5


def test_what_is_known_is_not_guarded():
    env = SizeEnv()
    a, b = sizes_of(env, a=4, b=6)
    assert a >= 1
    assert a * b + 3 > 2
    assert not a * 2 < 0
    assert (a + b) - b == a
    assert statically_known_true(a * 8 % 4 == 0)
    assert not statically_known_true(a == 4)
    assert not env.guards
    assert a < b
    assert len(env.guards) == 1
    assert a < b
    assert len(env.guards) == 1


def test_what_is_not_covered_gives_up():
    for ask in (
        lambda a, b: a**b,
        lambda a, b: a << 1,
    ):
        env = SizeEnv()
        with pytest.raises(NeedsShapeEnv):
            ask(*sizes_of(env, a=4, b=6))
        assert env.gave_up


def test_no_assumption_after_the_end():
    env = SizeEnv()
    a, b = sizes_of(env, a=4, b=6)
    assert a < b
    env.close()
    assert a < b
    assert a > 0
    with pytest.raises(NeedsShapeEnv):
        bool(a == 4)


def test_an_inequality_that_follows_adds_no_guard():
    env = SizeEnv()
    (a,) = sizes_of(env, a=75)
    width = (a + 1) // 4 - 3
    assert width > 0
    guards = list(env.guards)
    env.close()
    for scaled in (width, 192 * width, (a + 1) // 4 * 5 - 15):
        assert scaled > 0
        assert not scaled < 1
    assert width > -4
    assert env.is_at_least(width.node.expr, 1)
    assert list(env.guards) == guards
    for unknown in (lambda: width > 1, lambda: 192 * width > 192, lambda: 2 * width > 3):
        assert not env.is_at_least(width.node.expr, 2)
        with pytest.raises(NeedsShapeEnv):
            bool(unknown())


def test_an_inequality_follows_in_the_form_that_later_assumptions_give_it():
    env = SizeEnv()
    (a,) = sizes_of(env, a=24)
    half = a // 2
    assert half > 3
    assert a % 8 == 0  # from now on, `a` and its divisions are multiples of another number
    guards = list(env.guards)
    assert half > 3
    assert a // 2 * 10 > 30
    assert list(env.guards) == guards


def test_division_by_a_size_that_may_be_zero():
    env = SizeEnv()
    a, b = sizes_of(env, a=4, b=6)
    assert (b // (a - 3)).node.hint == 6
    assert list(env.guards) == ["(a + (-3)) != 0"]
    with pytest.raises(ZeroDivisionError):
        b // (a - 4)
