"""Functions that do something besides computing, each with what tells how often it happened."""

from tests.soundness.effect_kinds import files, objects, output  # noqa: F401 - each module registers its cases
from tests.soundness.effect_kinds.registry import CASES

__all__ = ["CASES"]
