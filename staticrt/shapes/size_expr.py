"""Size expressions: polynomials with whole coefficients over symbols, floor divisions and remainders.

Sizes of models are simple expressions, and a trace compares them thousands of times. Expressions are kept in a normal
form: equal forms are equal for all values of the symbols. The reverse holds for polynomials, but not for every nesting of
divisions, so that expressions of different forms are never assumed to differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

FLOORDIV, MOD, MAX, MIN = "//", "%", "max", "min"


class Atom:
    """A factor in the terms of a polynomial. Atoms with equal texts are equal.

    Attributes:
        text: Python source over the names of symbols.
        low: a lower bound of the value; None where none is known.
    """

    __slots__ = ("_hash", "low", "text")

    def __init__(self, text: str, low: int | None) -> None:
        self.text = text
        self.low = low
        self._hash = hash(text)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.text == other.text)

    def __repr__(self) -> str:
        return self.text

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols that the value depends on."""
        raise NotImplementedError


class Symbol(Atom):
    """A size of the caller's arguments.

    Args:
        name: an identifier.
        positive: it is at least 1 wherever the expression is used.
    """

    __slots__ = ()

    def __init__(self, name: str, positive: bool = True) -> None:
        super().__init__(name, 1 if positive else None)

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return frozenset((self,))


class Operation(Atom):
    """A floor division, remainder, maximum or minimum that no rule simplifies.

    Args:
        is_exact: a floor division that leaves no remainder, for all symbols.
    """

    __slots__ = ("args", "is_exact", "name")

    def __init__(self, name: str, args: tuple[Expr, ...], low: int | None, is_exact: bool = False) -> None:
        if name in (FLOORDIV, MOD):
            text = f"({operand(args[0])} {name} {operand(args[1])})"
        else:
            text = f"{name}({', '.join(arg.text for arg in args)})"
        super().__init__(text, low)
        self.name = name
        self.args = args
        self.is_exact = is_exact

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(arg.free_symbols for arg in self.args))


class Known(Operation):
    """An operation about which the trace assumes more than its arguments say.

    Its text differs from that of the same operation without the assumption or with another one, because results are
    cached across traces and atoms with equal texts are equal.

    Args:
        args: as they were when the assumption was made; later substitutions do not change them.
    """

    __slots__ = ()

    def __init__(self, name: str, args: tuple[Expr, ...], low: int | None, is_exact: bool = False) -> None:
        super().__init__(name, args, low, is_exact)
        self.text = f"({self.text})"
        self._hash = hash(self.text)


def positive(operation: Operation) -> Known:
    """An operation that is at least 1."""
    return Known(operation.name, operation.args, 1, operation.is_exact)


class Quotient(Known):
    """A floor division that leaves no remainder."""

    __slots__ = ()

    def __init__(self, dividend: Expr, divisor: Expr) -> None:
        least, by = dividend.least(), int(divisor) if divisor.is_Integer else 0
        low = -(-least // by) if least is not None and by > 0 else None
        if low is None and is_at_least(dividend, 0) and is_at_least(divisor, 1):
            low = min(least or 0, 1)
        super().__init__(FLOORDIV, (dividend, divisor), low)
        self.text = f"({self.text})"
        self._hash = hash(self.text)


def operand(expr: Expr) -> str:
    """The text of an expression beside an operator: a product gets parentheses, as a sum has."""
    is_closed = len(expr.terms) > 1 or expr.is_Integer or expr.atom is not None
    return expr.text if is_closed else f"({expr.text})"


Monomial = tuple[Atom, ...]


class Expr:
    """A polynomial; see the module's docstring. Immutable, compares and hashes by its normal form.

    Args:
        terms: coefficient of each product of atoms, none of them 0; `()` is the constant term.
    """

    __slots__ = ("_atoms", "_free", "_hash", "terms", "text")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = tuple(sorted(terms.items(), key=_rank, reverse=True))
        self.text = _text(self.terms)
        self._hash = hash(self.text)
        self._free: frozenset[Symbol] | None = None
        self._atoms: frozenset[Atom] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.is_Integer and int(self) == other
        return self is other or (isinstance(other, Expr) and self.text == other.text)

    def __repr__(self) -> str:
        return self.text

    # Named as in sympy, whose expressions are used as sizes too.

    @property
    def is_Integer(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    is_number = is_Integer
    is_Boolean = False

    @property
    def is_Symbol(self) -> bool:
        atom = self.atom
        return atom is not None and isinstance(atom, Symbol)

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        if self._free is None:
            found = (atom.free_symbols for monomial, _coefficient in self.terms for atom in monomial)
            self._free = frozenset().union(*found)
        return self._free

    @property
    def atoms(self) -> frozenset[Atom]:
        """All atoms that a substitution may replace: this expression's, and those inside its operations."""
        if self._atoms is None:
            found = {atom for monomial, _coefficient in self.terms for atom in monomial}
            for atom in tuple(found):
                if isinstance(atom, Operation) and not isinstance(atom, Known):
                    found.update(*(arg.atoms for arg in atom.args))
            self._atoms = frozenset(found)
        return self._atoms

    def __int__(self) -> int:
        """The number; only of a constant."""
        if not self.terms:
            return 0
        ((monomial, coefficient),) = self.terms
        assert not monomial
        return coefficient

    @property
    def atom(self) -> Atom | None:
        """The atom, if this expression is a single one; else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def least(self) -> int | None:
        """A lower bound; None where none is known."""
        total = 0
        for monomial, coefficient in self.terms:
            if not monomial:
                total += coefficient
                continue
            bound = _product(_low_of if coefficient > 0 else _high_of, monomial)
            if bound is None:
                return None
            total += coefficient * bound
        return total

    def value(self, values: Mapping[str, int]) -> int:
        """The number for these values of the symbols, by name."""
        return int(eval(self.text, {"max": max, "min": min, **values}))


def _rank(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    """Larger products first, as a long division takes them; then by name."""
    return len(term[0]), [atom.text for atom in term[0]]


def _low_of(atom: Atom) -> int | None:
    return atom.low


def _high_of(atom: Atom) -> int | None:
    """An upper bound of an atom that is not negative; None where none is known."""
    if isinstance(atom, Operation) and atom.name == MOD and atom.args[1].is_Integer:
        return int(atom.args[1]) - 1 if int(atom.args[1]) > 0 else None
    return None


def _product(bound_of: Callable[[Atom], int | None], atoms: Iterable[Atom]) -> int | None:
    """The product of the bounds of atoms that are not negative; None where one has no bound."""
    result = 1
    for atom in atoms:
        bound = bound_of(atom)
        if bound is None or atom.low is None or atom.low < 0:
            return None
        result *= bound
    return result


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    parts = []
    for monomial, coefficient in terms:
        factors = [atom.text for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient) if coefficient >= 0 else f"({coefficient})")
        parts.append("*".join(factors))
    if len(parts) > 1:
        return f"({' + '.join(parts)})"
    return parts[0] if parts else "0"


@functools.lru_cache(maxsize=1024)
def constant(number: int) -> Expr:
    return Expr({(): number} if number else {})


def symbol(name: str, positive: bool = True) -> Expr:
    return of_atom(Symbol(name, positive))


def of_atom(atom: Atom) -> Expr:
    """An expression that is one atom."""
    return Expr({(atom,): 1})


def as_expr(value: int | Expr) -> Expr:
    return constant(value) if isinstance(value, int) else value


@functools.lru_cache(maxsize=8192)
def add(a: Expr, b: Expr) -> Expr:
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return normal(terms)


def negate(a: Expr) -> Expr:
    return Expr({monomial: -coefficient for monomial, coefficient in a.terms})


def subtract(a: Expr, b: Expr) -> Expr:
    return add(a, negate(b))


@functools.lru_cache(maxsize=8192)
def multiply(a: Expr, b: Expr) -> Expr:
    terms: dict[Monomial, int] = {}
    for first, c in a.terms:
        for second, d in b.terms:
            monomial = tuple(sorted((*first, *second), key=lambda atom: atom.text))
            terms[monomial] = terms.get(monomial, 0) + c * d
    return normal(terms)


def normal(terms: dict[Monomial, int]) -> Expr:
    """Without terms whose coefficient is 0; an exact `n * (x // n)` becomes `x`."""
    for monomial, coefficient in terms.items():
        for index, atom in enumerate(monomial):
            if (
                isinstance(atom, Operation)
                and atom.is_exact
                and coefficient % int(atom.args[1]) == 0 != coefficient
            ):
                rest = dict(terms)
                del rest[monomial]
                others = Expr({monomial[:index] + monomial[index + 1 :]: coefficient // int(atom.args[1])})
                return add(normal(rest), multiply(others, atom.args[0]))
    return Expr({monomial: coefficient for monomial, coefficient in terms.items() if coefficient})


def is_at_least(a: Expr, bound: int) -> bool:
    least = a.least()
    return least is not None and least >= bound
