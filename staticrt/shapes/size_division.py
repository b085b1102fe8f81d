"""Divisions, remainders, minima, maxima and comparisons of size expressions, simplified where a rule is known."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from staticrt import tuning
from staticrt.shapes.size_expr import (
    FLOORDIV,
    MAX,
    MIN,
    MOD,
    Atom,
    Expr,
    Known,
    Monomial,
    Operation,
    Quotient,
    add,
    constant,
    is_at_least,
    multiply,
    negate,
    normal,
    of_atom,
    subtract,
)


def substitute(expr: Expr, values: Mapping[Atom, Expr]) -> Expr:
    """The expression with some atoms replaced."""
    if expr.atoms.isdisjoint(values):
        return expr
    total = constant(0)
    for monomial, coefficient in expr.terms:
        part = constant(coefficient)
        for atom in monomial:
            part = multiply(part, _substituted(atom, values))
        total = add(total, part)
    return total


def _substituted(atom: Atom, values: Mapping[Atom, Expr]) -> Expr:
    value = values.get(atom)
    if value is not None:
        return value
    if not isinstance(atom, Operation) or isinstance(atom, Known):
        return of_atom(atom)
    left, right = (substitute(arg, values) for arg in atom.args)
    made: dict[str, Callable[[Expr, Expr], Expr]]
    made = {FLOORDIV: floordiv, MOD: modulo, MAX: maximum, MIN: minimum}
    return made[atom.name](left, right)


def _exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """`a / b` where it has no remainder and `b` is positive; None where that is not known."""
    return _quotient(a, b) if is_at_least(b, 1) else None


def _quotient(a: Expr, b: Expr) -> Expr | None:
    """`a / b` where it has no remainder and `b` is not 0; None where that is not known."""
    if not b.terms:
        return None
    quotient = constant(0)
    for _ in range(tuning.MAX_DIVISION_STEPS):
        if not a.terms:
            return quotient
        step = _term_quotient(a.terms[0], b.terms[0])
        if step is None:
            return None
        quotient = add(quotient, step)
        a = subtract(a, multiply(step, b))
    return None


def _term_quotient(a: tuple[Monomial, int], b: tuple[Monomial, int]) -> Expr | None:
    left = list(a[0])
    for atom in b[0]:
        if atom not in left:
            return None
        left.remove(atom)
    return None if a[1] % b[1] else Expr({tuple(left): a[1] // b[1]})


@functools.lru_cache(maxsize=8192)
def floordiv(a: Expr, b: Expr) -> Expr:
    """As Python's.

    Raises:
        ZeroDivisionError: `b` is 0.
    """
    if b.is_Integer and int(b) == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    exact = _exact_quotient(a, b)
    if exact is not None:
        return exact
    # A number smaller than the divisor does not change the quotient of a multiple.
    extra = next((c for m, c in a.terms if not m), 0)
    if extra and is_at_least(b, extra + 1) and extra > 0:
        rest = subtract(a, constant(extra))
        if modulo(rest, b) == 0:
            return floordiv(rest, b)
    if not b.is_Integer or int(b) < 0:
        low = 0 if is_at_least(a, 0) and is_at_least(b, 1) else None
        return of_atom(Operation(FLOORDIV, (a, b), low))
    by = int(b)
    whole = Expr({m: c // by for m, c in a.terms if c // by})
    part = Expr({m: c % by for m, c in a.terms if c % by})
    if part.is_Integer:  # of 0 to by - 1
        return normal(dict(whole.terms))
    shared = _shared_factor(part, by)
    if shared > 1:  # (g * a + r) // (g * b) == a // b where 0 <= r < g
        part = Expr({m: c // shared for m, c in part.terms if c // shared})
        return add(whole, floordiv(part, constant(by // shared)))
    nested = _nested(part)
    if nested is not None:  # (x // c + k) // by == (x + c * k) // (c * by)
        inner, plus = nested
        x, c = inner.args
        return add(whole, floordiv(add(x, multiply(c, constant(plus))), multiply(c, b)))
    least, is_exact = part.least(), modulo(part, b) == 0
    low = None if least is None else -(-least // by) if is_exact else least // by
    atom = Operation(FLOORDIV, (part, b), low, is_exact)
    return add(whole, of_atom(atom))


def _shared_factor(a: Expr, by: int) -> int:
    """The greatest factor of a number and of all coefficients but the constant term."""
    return math.gcd(by, *(coefficient for monomial, coefficient in a.terms if monomial))


def _nested(part: Expr) -> tuple[Operation, int] | None:
    """The division and the number whose sum an expression is."""
    plus = 0
    found = None
    for monomial, coefficient in part.terms:
        if not monomial:
            plus = coefficient
        elif (
            found is None
            and coefficient == 1
            and len(monomial) == 1
            and isinstance(monomial[0], Operation)
            and monomial[0].name == FLOORDIV
            and not isinstance(monomial[0], Quotient)  # whose dividend is a multiple of it
            and monomial[0].args[1].is_Integer
            and int(monomial[0].args[1]) > 0
        ):
            found = monomial[0]
        else:
            return None
    return None if found is None else (found, plus)


@functools.lru_cache(maxsize=8192)
def modulo(a: Expr, b: Expr) -> Expr:
    """As Python's: of the divisor's sign.

    Raises:
        ZeroDivisionError: `b` is 0.
    """
    if b.is_Integer and int(b) == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    if _exact_quotient(a, b) is not None:
        return constant(0)
    if not b.is_Integer or int(b) < 0:
        return of_atom(Operation(MOD, (a, b), 0 if is_at_least(b, 1) else None))
    by = int(b)
    # Drop multiples of the divisor, and remainders inside by a multiple of it.
    total = constant(0)
    for monomial, coefficient in a.terms:
        if coefficient % by == 0:
            continue
        term = Expr({monomial: coefficient % by})
        if len(monomial) == 1 and isinstance(monomial[0], Operation) and monomial[0].name == MOD:
            inner = monomial[0].args[1]
            if inner.is_Integer and int(inner) > 0 and int(inner) * coefficient % by == 0:
                term = multiply(constant(coefficient % by), monomial[0].args[0])
        total = add(total, term)
    reduced = Expr({m: c % by for m, c in total.terms if c % by})
    if reduced.is_Integer:
        return reduced
    if reduced != a:
        return modulo(reduced, b)
    shared = _shared_factor(reduced, by)
    if shared > 1:  # (g * a + r) % (g * b) == g * (a % b) + r where 0 <= r < g
        quotient = Expr({m: c // shared for m, c in reduced.terms if c // shared})
        rest = constant(next((c % shared for m, c in reduced.terms if not m), 0))
        return add(multiply(constant(shared), modulo(quotient, constant(by // shared))), rest)
    return of_atom(Operation(MOD, (reduced, b), 0))


def without_remainders(total: Expr) -> Expr:
    """A sum with `a - a % n` as `n * (a // n)` and `a + -a % n`, a size that is padded, as `n * ((a + n - 1) // n)`."""
    terms = dict(total.terms)
    for monomial, coefficient in total.terms:
        remainder = monomial[0] if len(monomial) == 1 else None
        if type(remainder) is not Operation or remainder.name != MOD or not remainder.args[1].is_Integer:
            continue
        divisor = remainder.args[1]
        by = int(divisor)
        for dividend in near_zero(remainder.args[0], by), negate(near_zero(negate(remainder.args[0]), by)):
            if any(terms.get(m) != -coefficient * c for m, c in dividend.terms if m):
                continue
            if dividend.terms[0][1] > 0:
                quotient = floordiv(dividend, divisor)
            else:  # that of the opposite, rounded up
                quotient = negate(floordiv(subtract(constant(by - 1), dividend), divisor))
            # dividend % n == dividend - n * (dividend // n)
            change = subtract(subtract(dividend, multiply(divisor, quotient)), of_atom(remainder))
            return without_remainders(add(total, multiply(constant(coefficient), change)))
    return total


def near_zero(a: Expr, by: int) -> Expr:
    """`a` with coefficients that are near 0 and equal modulo `by`."""
    return Expr({m: near for m, c in a.terms if (near := (c + by // 2) % by - by // 2)})


def maximum(a: Expr, b: Expr) -> Expr:
    return _extreme(MAX, a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    return _extreme(MIN, a, b)


def _extreme(name: str, a: Expr, b: Expr) -> Expr:
    above, below = subtract(a, b).least(), subtract(b, a).least()
    if above is not None and above >= 0:
        return a if name == MAX else b
    if below is not None and below >= 0:
        return b if name == MAX else a
    bounds = [expr.least() for expr in (a, b)]
    known = [bound for bound in bounds if bound is not None]
    if name == MAX:
        low = max(known) if known else None
    else:
        low = min(known) if len(known) == len(bounds) else None
    return of_atom(Operation(name, (a, b), low))


def order(a: Expr, b: Expr, is_at_least: Callable[[Expr, int], bool] = is_at_least) -> int | None:
    """Whether a > b (1), a < b (-1) or a == b (0) for all symbols of at least 1; a multiple counts as greater.

    The answer does not hold for symbols that are 0.

    Args:
        is_at_least: whether an expression is at least a number.
    """
    if a == b:
        return 0
    for first, second, answer in ((a, b, 1), (b, a, -1)):
        quotient = _quotient(first, second) if first.terms and is_at_least(second, 0) else None
        if quotient is not None and is_at_least(quotient, 0):
            return answer
    for first, second, answer in ((a, b, 1), (b, a, -1)):
        if is_at_least(subtract(first, second), 1):
            return answer
    return None
