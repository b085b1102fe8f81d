"""How a trace represents the sizes of its arguments."""

from __future__ import annotations

import enum


class Sizing(enum.Enum):
    """One way to represent sizes, from the cheapest and most general to constants."""

    OURS = "symbols of shapes/size_nodes.py, without sympy"
    OURS_CONSTANT = "constants; other numbers are symbols of shapes/size_nodes.py"
    SHAPE_ENV = "symbols of torch's ShapeEnv"
    SHAPE_ENV_ZERO_ONE = "symbols of torch's ShapeEnv, except that sizes 0 and 1 are constants"
    SHAPE_ENV_CONSTANT = "constants; other numbers are symbols of torch's ShapeEnv"

    @staticmethod
    def first(dynamic: bool, shape_env: bool) -> Sizing:
        """The one to try first.

        Args:
            dynamic: sizes are symbols; else constants.
            shape_env: only torch's ShapeEnv serves.
        """
        if dynamic:
            return Sizing.SHAPE_ENV if shape_env else Sizing.OURS
        return Sizing.SHAPE_ENV_CONSTANT if shape_env else Sizing.OURS_CONSTANT

    @property
    def is_ours(self) -> bool:
        """Without torch's ShapeEnv: code that needs it raises `NeedsShapeEnv`."""
        return self in (Sizing.OURS, Sizing.OURS_CONSTANT)

    @property
    def is_constant(self) -> bool:
        """Every size is a constant of the trace."""
        return self in (Sizing.OURS_CONSTANT, Sizing.SHAPE_ENV_CONSTANT)

    @property
    def is_oblivious(self) -> bool:
        """Sizes 0 and 1 are treated like any other (ShapeEnv's `backed_size_oblivious`)."""
        return self in (Sizing.OURS, Sizing.SHAPE_ENV)
