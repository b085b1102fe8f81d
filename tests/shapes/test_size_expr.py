"""Size expressions against Python's own arithmetic, on random ones."""

import random

import pytest

from staticrt.shapes import size_division, size_expr
from staticrt.shapes.size_division import floordiv, maximum, minimum, modulo, without_remainders
from staticrt.shapes.size_expr import Expr, add, constant, multiply, negate, subtract

NAMES = ("a", "b", "c")
OPERATIONS = {
    "+": (add, lambda x, y: x + y),
    "-": (subtract, lambda x, y: x - y),
    "*": (multiply, lambda x, y: x * y),
    "//": (floordiv, lambda x, y: x // y),
    "%": (modulo, lambda x, y: x % y),
    "max": (maximum, max),
    "min": (minimum, min),
}


def random_tree(generator, depth):
    if depth == 0 or generator.random() < 0.2:
        if generator.random() < 0.6:
            return generator.choice(NAMES)
        return generator.choice([-3, -2, -1, 0, 1, 2, 3, 4, 7, 8])
    name = generator.choice([*OPERATIONS, "//", "%"])
    left = random_tree(generator, depth - 1)
    if name in ("//", "%") and generator.random() < 0.8:
        return name, left, generator.choice([1, 2, 3, 4, 6, 7, -2])
    return name, left, random_tree(generator, depth - 1)


def built(tree):
    if isinstance(tree, str):
        return size_expr.symbol(tree)
    if isinstance(tree, int):
        return constant(tree)
    name, left, right = tree
    return OPERATIONS[name][0](built(left), built(right))


def computed(tree, values):
    if isinstance(tree, str):
        return values[tree]
    if isinstance(tree, int):
        return tree
    name, left, right = tree
    return OPERATIONS[name][1](computed(left, values), computed(right, values))


def samples(generator, count=12):
    return [{name: generator.choice([1, 2, 3, 5, 7, 8, 16, 31]) for name in NAMES} for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_values_and_bounds(seed):
    """The normal form has the value of what was written, `least` bounds it, a division raises where Python's does."""
    generator = random.Random(seed)
    checked = bounded = 0
    for _ in range(250):
        tree = random_tree(generator, 4)
        try:
            expr = built(tree)
        except ZeroDivisionError:
            # The divisor is 0 whatever the symbols are.
            for values in samples(generator, 3):
                with pytest.raises(ZeroDivisionError):
                    computed(tree, values)
            continue
        least = expr.least()
        for values in samples(generator):
            try:
                expected = computed(tree, values)
            except ZeroDivisionError:
                continue
            try:
                actual = expr.value(values)
            except ZeroDivisionError:
                pytest.fail(f"{tree} became {expr}, which divides by 0 at {values}")
            assert actual == expected, (tree, expr, values)
            checked += 1
            if least is not None:
                assert expected >= least, (tree, expr, values)
                bounded += 1
    assert checked > 1000
    assert bounded > 100


@pytest.mark.parametrize("seed", range(4))
def test_substitution_order_and_equality(seed):
    generator = random.Random(seed)
    ordered = equal = 0
    for _ in range(300):
        first, second = random_tree(generator, 2), random_tree(generator, 2)
        try:
            a, b = built(first), built(second)
            replaced = size_division.substitute(
                a, {size_expr.Symbol("a"): add(size_expr.symbol("b"), constant(2))}
            )
        except ZeroDivisionError:
            continue
        order = size_division.order(a, b)
        for values in samples(generator, 6):
            try:
                x, y = computed(first, values), computed(second, values)
                moved = computed(first, {**values, "a": values["b"] + 2})
            except ZeroDivisionError:
                continue
            assert replaced.value(values) == moved
            if a == b:
                assert x == y
                equal += 1
            if order is not None and x > 0 and y > 0:
                assert (x >= y) if order > 0 else (x <= y) if order < 0 else x == y, (a, b, values)
                ordered += 1
    assert equal > 5
    assert ordered > 50


def size(name):
    return size_expr.symbol(name)


def test_what_models_need_to_be_equal():
    h = size("h")
    padded = add(h, modulo(subtract(constant(7), modulo(h, constant(7))), constant(7)))
    assert modulo(padded, constant(7)) == 0
    assert multiply(floordiv(padded, constant(7)), constant(7)) == padded
    once = add(floordiv(subtract(h, constant(1)), constant(2)), constant(1))
    twice = add(floordiv(subtract(once, constant(1)), constant(2)), constant(1))
    assert twice == add(floordiv(subtract(h, constant(1)), constant(4)), constant(1))
    assert twice.least() == 1
    assert floordiv(multiply(add(h, constant(3)), size("w")), size("w")) == add(h, constant(3))
    assert floordiv(multiply(size("w"), add(h, constant(3))), add(h, constant(3))) == size("w")
    assert maximum(constant(1), h) == h
    assert minimum(h, constant(0)) == 0
    assert isinstance(floordiv(h, size("w")), Expr)


def test_sums_without_remainders():
    h, w = size("h"), size("w")
    for by in (2, 4, 7):
        n = constant(by)
        for a in (h, add(h, constant(3)), floordiv(add(h, constant(15)), constant(16)), multiply(h, w)):
            padded = without_remainders(add(a, modulo(subtract(constant(by), modulo(a, n)), n)))
            assert padded == multiply(n, floordiv(add(a, constant(by - 1)), n))
            cropped = without_remainders(subtract(a, modulo(a, n)))
            assert cropped == multiply(n, floordiv(a, n))
            assert floordiv(padded, n).least() is not None
    padded = without_remainders(add(h, modulo(negate(h), constant(7))))
    windows = multiply(floordiv(padded, constant(7)), floordiv(multiply(w, constant(7)), constant(7)))
    again = floordiv(floordiv(multiply(padded, multiply(w, constant(7))), constant(7)), constant(7))
    assert floordiv(multiply(size("b"), windows), again) == size("b")


@pytest.mark.parametrize("seed", range(5))
def test_sums_without_remainders_have_the_same_values(seed):
    generator = random.Random(seed)
    changed = 0
    for _ in range(200):
        part, others = size(generator.choice(NAMES)), size(generator.choice(NAMES))
        if generator.random() < 0.5:
            part = floordiv(add(part, constant(generator.randrange(9))), constant(generator.randrange(1, 9)))
        by, factor = generator.choice([2, 3, 4, 6]), generator.choice([-3, -1, 1, 2])
        remainder = modulo(
            add(multiply(constant(generator.choice([-2, -1, 1, 3])), part), others), constant(by)
        )
        total = add(multiply(constant(factor), remainder), add(multiply(constant(factor), part), others))
        total = subtract(total, multiply(constant(generator.choice([0, 2])), others))
        simple = without_remainders(total)
        changed += simple != total
        for values in samples(generator, 6):
            assert simple.value(values) == total.value(values), (total, simple)
    assert changed > 10


def test_forms_do_not_depend_on_the_order_of_work():
    a, b, c = map(size, NAMES)
    assert add(add(a, b), c).text == add(c, add(b, a)).text
    assert multiply(multiply(a, b), c).text == multiply(c, multiply(b, a)).text


def test_assumptions_that_differ_are_different_atoms():
    n, two = size_expr.symbol("n"), constant(2)
    plain = floordiv(n, two).atom
    atoms = [plain, size_expr.positive(plain), size_expr.Quotient(n, two)]
    assert len({atom.text for atom in atoms}) == 3
    products = [multiply(two, size_expr.of_atom(atom)) for atom in atoms]
    assert [type(product.terms[0][0][0]) for product in products] == [type(atom) for atom in atoms]
