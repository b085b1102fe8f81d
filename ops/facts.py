"""What is known of one operator: the words that passes, lowering and the planner share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from staticrt.ops.out_rules import OutRule


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
class Tolerance:
    """How far two correct kernels of the op may differ: |a - b| <= atol + rtol * |b|, in float32.

    `BITWISE` means not at all. Half types widen a tolerance by the ratio of their epsilon to float32's.
    """

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def bitwise(self) -> bool:
        return self.rtol == 0.0 and self.atol == 0.0


BITWISE = Tolerance()
# Sums and products whose order a library chooses (BLAS, oneDNN, a fused loop).
ACCUMULATED = Tolerance(rtol=1.3e-6, atol=1e-5)
# Decompositions whose vectors may turn or swap within rounding.
DECOMPOSED = Tolerance(rtol=1e-4, atol=1e-4)


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
        known: someone declared the op; if not, the facts are what is safe for any op.
        family: the file of `ops/` that declares it, or "" if unknown.
        kernel: C++ kernel to use where it is not the one registered under the op's own name;
            None leaves the choice to the runtime: its own kernel, `.out` overload, boxed call.
        out: rule for the output's sizes and dtype, or None: ask a fake tensor.
        aliases: which results share storage with which arguments.
        mutates: positions of the arguments that the op writes.
        can_reuse: positions of the arguments whose bytes the output may take at their last use, if
            sizes, strides and element size are the output's: element i of the output depends on no
            other element of these arguments.
        pure: a call whose results nobody reads may be left out. Random ops are not pure: leaving one
            out changes the numbers drawn after it.
        random: draws from a generator.
        idle_when: argument values, any of which makes a call neither random nor writing: dropout with
            train=False. `facts_of_call` answers for one call.
        cost, fusable: cost class; whether the op can join one loop over elements with its neighbours.
        tolerance: how far correct kernels may differ.
    """

    name: str
    known: bool = False
    family: str = ""
    kernel: str | None = None
    out: OutRule | None = None
    aliases: tuple[Alias, ...] = ()
    mutates: tuple[int, ...] = ()
    can_reuse: tuple[int, ...] = ()
    pure: bool = False
    random: bool = False
    idle_when: tuple[tuple[str, object], ...] = ()
    cost: Cost = Cost.OTHER
    fusable: bool = False
    tolerance: Tolerance = BITWISE

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
