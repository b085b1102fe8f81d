"""What is known of one operator; passes, lowering and training read it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cost(enum.Enum):
    """What a call of the op mostly costs; `VIEW` moves no tensor bytes."""

    VIEW = "view"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    GEMM = "gemm"
    CONV = "conv"
    MEMORY = "memory"
    OTHER = "other"


@dataclass(frozen=True)
class Alias:
    """Result `output` shares storage with the tensors of argument `arg`; with `may`, perhaps.

    `output` and `arg` are positions in the schema. If either is a list of tensors, each element counts.
    """

    output: int
    arg: int
    may: bool


@dataclass(frozen=True)
class OpFacts:
    """Facts of one operator overload, merged from its schema and its declaration.

    Attributes:
        name: "aten.add.Tensor", "operator.floordiv", "higher_order.cond".
        known: whether the op is declared; if not, the facts are those that are safe for any op.
        family: the file of `ops/` that declares it, or "" if unknown.
        aliases: which results share storage with which arguments.
        mutates: positions of the arguments that the op writes.
        pure: a call whose results have no readers may be removed. Random ops are not pure: leaving one
            out changes the numbers drawn after it.
        random: draws from a generator.
        idle_when: argument values; any of them makes a call neither random nor writing, as train=False does
            for dropout. `facts_of_call` answers for one call.
        cost, fusable: cost class; whether the op can join one loop over elements with its neighbours.
    """

    name: str
    known: bool = False
    family: str = ""
    aliases: tuple[Alias, ...] = ()
    mutates: tuple[int, ...] = ()
    pure: bool = False
    random: bool = False
    idle_when: tuple[tuple[str, object], ...] = ()
    cost: Cost = Cost.OTHER
    fusable: bool = False

    @property
    def is_view(self) -> bool:
        """The op returns nothing but views: each result surely shares an argument's storage."""
        return bool(self.aliases) and not self.mutates and not any(alias.may for alias in self.aliases)

    @property
    def may_alias(self) -> bool:
        """Some result may or may not share an argument's storage, by sizes, strides or dtype."""
        return any(alias.may for alias in self.aliases)

    def sources(self, output: int = 0) -> tuple[int, ...]:
        """Positions of the arguments whose storage result `output` may share."""
        return tuple(alias.arg for alias in self.aliases if alias.output == output)
