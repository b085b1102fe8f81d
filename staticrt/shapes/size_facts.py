"""What an assumption about sizes says about their atoms.

A trace that assumes `h % 8 == 0` goes on with `8 * k` for `h`, where `k` is `h // 8`: that windows of 8 elements make up
`h` is then arithmetic of polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from staticrt.shapes import size_expr
from staticrt.shapes.size_conditions import Condition
from staticrt.shapes.size_division import floordiv, near_zero, substitute
from staticrt.shapes.size_expr import FLOORDIV, MOD, Atom, Expr, Known, Operation, Quotient, Symbol


def facts(held: Condition, replace: Callable[[Expr], Expr]) -> Iterator[tuple[Atom, Expr]]:
    """Atoms and the expressions that they equal where a condition holds; the expression does not contain the atom.

    Args:
        replace: replaces atoms by what is known of them, including the facts yielded so far.
    """
    for zero in map(replace, _zeros(held)):
        found = _remainder(zero) or _alone(zero) or _whole(zero)
        if found is not None:
            yield found
    for atom in _positives(held):
        if replace(size_expr.of_atom(atom)).atom == atom:
            yield atom, size_expr.of_atom(size_expr.positive(atom))


def implied(atom: Atom, known: Mapping[Atom, Expr]) -> Expr | None:
    """What a division equals, given what `known` says of another division of the same dividend; None if nothing.

    `(h + 7) // 8` is `(k + 1) // 2` where `(h + 3) // 4` is known to be k: divisions of divisions are written as one.
    """
    if type(atom) is not Operation or atom.name != FLOORDIV or not atom.args[1].is_Integer:
        return None
    dividend, by = atom.args[0], int(atom.args[1])
    for other, value in known.items():
        if type(other) is not Operation or other.name != FLOORDIV or not other.args[1].is_Integer:
            continue
        divisor = int(other.args[1])
        if 0 < divisor < by and by % divisor == 0:
            inner = floordiv(dividend, other.args[1])
            if other in inner.atoms:
                outer = size_expr.constant(by // divisor)
                return floordiv(substitute(inner, {other: value}), outer)
    return None


def upper_bound(held: Condition) -> tuple[Expr, int] | None:
    """An inequality as an expression without constant term or common factor, and its upper bound.

    `192 * w >= 384` and `w > 1` say the same: `-w` is at most -2.
    """
    not_positive = _not_positive(held)
    if not_positive is None:
        return None
    terms = dict(not_positive.terms)
    rest = terms.pop((), 0)
    if not terms:
        return None
    shared = math.gcd(*terms.values())
    return Expr({monomial: coefficient // shared for monomial, coefficient in terms.items()}), -rest // shared


def _not_positive(held: Condition) -> Expr | None:
    """An expression that is at most 0 where an inequality holds."""
    one, difference = size_expr.constant(1), held.difference
    match held.name:
        case "<=":
            return difference
        case "<":
            return size_expr.add(difference, one)
        case ">=":
            return size_expr.negate(difference)
        case ">":
            return size_expr.subtract(one, difference)
        case "!=":
            for side in (difference, size_expr.negate(difference)):
                if side.least() == 0:
                    return size_expr.subtract(one, side)
    return None


def _positives(held: Condition) -> list[Operation]:
    """Operations that are never negative, and not 0 where a condition holds."""
    not_positive = _not_positive(held)
    if not_positive is None or len(not_positive.terms) != 2:
        return []
    (monomial, coefficient), (others, least) = not_positive.terms
    if others or least < 1 or coefficient > 0 or any(atom.low is None or atom.low < 0 for atom in monomial):
        return []
    return [a for a in monomial if isinstance(a, Operation) and not isinstance(a, Known) and a.low == 0]


def _zeros(held: Condition) -> list[Expr]:
    """Expressions that are 0 where a condition holds."""
    if held.name == "==":
        return [held.difference]
    not_positive = _not_positive(held)
    if not_positive is None or not_positive.least() != 0:
        return []
    # A sum that is at most its lower bound equals it, and so does each of its terms.
    terms = (Expr({monomial: coefficient}) for monomial, coefficient in not_positive.terms if monomial)
    return [size_expr.subtract(term, size_expr.constant(term.least() or 0)) for term in terms]


def _alone(zero: Expr) -> tuple[Atom, Expr] | None:
    """An atom and an expression without it that it equals where `zero` is 0; None if there is none."""
    shared = math.gcd(*(coefficient for _monomial, coefficient in zero.terms))
    if shared > 1:
        zero = Expr({monomial: coefficient // shared for monomial, coefficient in zero.terms})
    for atom, coefficient, rest in _candidates(zero):
        if abs(coefficient) == 1:
            return atom, size_expr.negate(rest) if coefficient == 1 else rest
    return None


def _remainder(zero: Expr) -> tuple[Atom, Expr] | None:
    """As `_alone`, for a remainder that equals a number."""
    (monomial, coefficient), *others = zero.terms or (((), 0),)
    if len(monomial) != 1 or not isinstance(monomial[0], Operation) or monomial[0].name != MOD:
        return None
    number = 0 if not others else others[0][1]
    if len(others) > 1 or (others and others[0][0]) or number % coefficient:
        return None
    dividend, divisor = monomial[0].args
    return _multiple(size_expr.add(dividend, size_expr.constant(number // coefficient)), divisor)


def _whole(zero: Expr) -> tuple[Atom, Expr] | None:
    """As `_alone`, for `n * (a // n) - a` or a multiple of it."""
    for (atom, *others), coefficient in ((m, c) for m, c in zero.terms if m):
        if others or not isinstance(atom, Operation) or atom.name != FLOORDIV or isinstance(atom, Quotient):
            continue
        dividend, divisor = atom.args
        whole = size_expr.subtract(size_expr.multiply(divisor, size_expr.of_atom(atom)), dividend)
        if divisor.is_Integer and coefficient % int(divisor) == 0:
            factor = size_expr.constant(coefficient // int(divisor))
            if size_expr.multiply(factor, whole) == zero:
                return _multiple(dividend, divisor)
    return None


def _multiple(dividend: Expr, divisor: Expr) -> tuple[Atom, Expr] | None:
    """As `_alone`, for a sum that is a multiple of a divisor."""
    for atom, own, rest in _candidates(dividend):
        if atom in divisor.atoms:
            continue
        if abs(own) == 1:
            inverse = own
        elif divisor.is_Integer and math.gcd(own, int(divisor)) == 1:
            inverse = pow(own, -1, int(divisor))
        else:
            continue
        # own * atom + rest == 0 modulo the divisor: so is atom + inverse * rest.
        rest = size_expr.multiply(size_expr.constant(inverse), rest)
        if divisor.is_Integer:
            rest = near_zero(rest, int(divisor))
        quotient = Quotient(size_expr.add(size_expr.of_atom(atom), rest), divisor)
        return atom, size_expr.subtract(size_expr.multiply(divisor, size_expr.of_atom(quotient)), rest)
    return None


def _candidates(a: Expr) -> Iterator[tuple[Atom, int, Expr]]:
    """Splits of a sum into factor * atom + rest, where the rest does not contain the atom: atom, factor, rest. Symbols first."""
    alone = [(monomial[0], coefficient) for monomial, coefficient in a.terms if len(monomial) == 1]
    for atom, coefficient in sorted(alone, key=lambda item: not isinstance(item[0], Symbol)):
        rest = Expr({m: c for m, c in a.terms if m != (atom,)})
        # Fractional numbers do not list what they are computed from as atoms.
        rounded = (other for other in rest.atoms if not isinstance(other, (Symbol, Operation)))
        own = atom.free_symbols
        if atom not in rest.atoms and all(own.isdisjoint(other.free_symbols) for other in rounded):
            yield atom, coefficient, rest
