"""Conditions on symbolic sizes: comparisons, joined by `and` and `or`."""

from __future__ import annotations

from staticrt.shapes import size_expr
from staticrt.shapes.size_expr import Expr

_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class Condition:
    """`left name right`, as a comparison of their difference with 0.

    Args:
        hint: its truth in this call.
    """

    __slots__ = ("difference", "hint", "left", "name", "right")

    def __init__(self, name: str, left: Expr, right: Expr, hint: bool) -> None:
        self.name = name
        self.left = left
        self.right = right
        self.difference = size_expr.subtract(left, right)
        self.hint = hint

    @property
    def text(self) -> str:
        """Python source over the names of symbols."""
        return f"{self.left.text} {self.name} {self.right.text}"

    def opposite(self) -> Condition:
        return Condition(_OPPOSITES[self.name], self.left, self.right, not self.hint)

    def held(self) -> tuple[Condition | Either | FloatCondition, ...]:
        """Conditions that all hold in this call, given that this one does."""
        return (self,)

    def known(self) -> bool | None:
        """Its truth for all values of the symbols; None: not known, or it depends on them."""
        least, opposite = self.difference.least(), size_expr.negate(self.difference).least()
        above = least is not None and least > 0
        at_least = least is not None and least >= 0
        below = opposite is not None and opposite > 0
        at_most = opposite is not None and opposite >= 0
        is_true, is_false = {
            "==": (at_least and at_most, above or below),
            "!=": (above or below, at_least and at_most),
            ">": (above, at_most),
            ">=": (at_least, below),
            "<": (below, at_least),
            "<=": (at_most, above),
        }[self.name]
        return True if is_true else False if is_false else None


class FloatCondition:
    """A comparison of fractional numbers, of which only the truth in this call is known.

    Args:
        text: Python source over the names of symbols.
    """

    __slots__ = ("hint", "text")

    def __init__(self, text: str, hint: bool) -> None:
        self.text = text
        self.hint = hint

    def opposite(self) -> FloatCondition:
        # `a >= b` is not that of `a < b` for all floats.
        return FloatCondition(f"not ({self.text})", not self.hint)

    def held(self) -> tuple[FloatCondition]:
        return (self,)

    def known(self) -> bool | None:
        return None


class Either:
    """Conditions of which at least one holds; the `opposite` says that none does.

    Args:
        parts: comparisons, or others of this kind.
        all_of: all of them hold instead.
    """

    __slots__ = ("all_of", "hint", "name", "parts")

    def __init__(self, parts: tuple[Condition | Either | FloatCondition, ...], all_of: bool = False) -> None:
        self.name = "and" if all_of else "or"
        self.parts = parts
        self.all_of = all_of
        self.hint: bool = (all if all_of else any)(part.hint for part in parts)

    @property
    def text(self) -> str:
        return f" {self.name} ".join(f"({part.text})" for part in self.parts)

    def opposite(self) -> Either:
        return Either(tuple(part.opposite() for part in self.parts), not self.all_of)

    def held(self) -> tuple[Condition | Either | FloatCondition, ...]:
        return tuple(one for part in self.parts for one in part.held()) if self.all_of else (self,)

    def known(self) -> bool | None:
        truths = [part.known() for part in self.parts]
        settles = not self.all_of  # one such part decides the whole
        if settles in truths:
            return settles
        return None if None in truths else not settles
