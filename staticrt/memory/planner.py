"""Memory planning: computes arena offsets from live ranges and sizes.

The planner is a pure C++ function (csrc/planner/): the same specs give the same plan on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from staticrt.errors import OptionError, PlanError
from staticrt.memory import html
from staticrt.memory.units import format_bytes
from staticrt.native import _C

_SHOWN_OFFSETS = 25  # in a notebook
EFFORTS = ("fast", "default", "high", "exhaustive")


class SpecLike(Protocol):
    """An object that describes one buffer; a tuple `(begin, end, size_bytes)` does as well."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


Spec = SpecLike | Sequence[int]


@dataclass(frozen=True)
class ArenaPlan:
    """Offsets of buffers in one arena. It unpacks: `offsets, arena_bytes, lower_bound, proved_optimal = plan(specs)`.

    Attributes:
        offsets: bytes from the arena's base, in the order of the specs; multiples of the alignment.
        arena_bytes: size of the arena, a multiple of the alignment.
        lower_bound: bytes; every plan needs at least these. At least the largest sum of rounded sizes live at one time.
        proved_optimal: whether `arena_bytes == lower_bound`.
    """

    offsets: list[int]
    arena_bytes: int
    lower_bound: int
    proved_optimal: bool

    def __iter__(self) -> Iterator[Any]:
        return iter((self.offsets, self.arena_bytes, self.lower_bound, self.proved_optimal))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown = list(enumerate(self.offsets))[:_SHOWN_OFFSETS]
        more = len(self.offsets) - len(shown)
        return "".join(
            [
                html.title(f"plan of {len(self.offsets)} buffers, arena {format_bytes(self.arena_bytes)}"),
                html.table(
                    [(self.arena_bytes, self.lower_bound, "yes" if self.proved_optimal else "no")],
                    ["arena, bytes", "lower bound, bytes", "proved optimal"],
                ),
                html.table(shown, ["buffer", "offset, bytes"], ["right", "right"]),
                html.lines([f"and {more} other buffers: see offsets"] if more else []),
            ]
        )


def _fields(spec: Any) -> Any:
    return (spec.begin, spec.end, spec.size_bytes) if hasattr(spec, "size_bytes") else spec


def _tuples(specs: Iterable[Spec]) -> list[tuple[int, int, int]]:
    rows = []
    for index, spec in enumerate(specs):
        try:
            begin, end, size_bytes = _fields(spec)
            # __index__, not int(): int() would truncate a size of 1.5 bytes
            row = (begin.__index__(), end.__index__(), size_bytes.__index__())
        except (TypeError, ValueError, AttributeError):
            raise PlanError(
                f"{spec!r} is not a spec",
                at=f"spec {index}",
                fix="give (begin, end, size_bytes), three integers, or an object with these attributes",
            ) from None
        if any(not -(2**63) <= value < 2**63 for value in row):
            raise PlanError(
                f"{row} does not fit in 64-bit integers", at=f"spec {index}", fix="check the sizes and times"
            )
        rows.append(row)
    return rows


def _alignment(alignment: int) -> int:
    if not isinstance(alignment, int) or not -(2**63) <= alignment < 2**63:
        raise PlanError(
            f"alignment {alignment!r} is not a 64-bit integer", fix="give a power of two in bytes"
        )
    return alignment


def plan(specs: Iterable[Spec], alignment: int = 64, effort: str = "default") -> ArenaPlan:
    """Assign an arena offset to every buffer. Buffers that are live at the same time share no byte.

    Args:
        specs: `(begin, end, size_bytes)` each, or objects with these attributes; live on `[begin, end)`.
            A buffer of size 0 gets offset 0 and occupies no bytes.
        alignment: bytes, a power of two. Sizes are rounded up to it.
        effort: the budget of search nodes: `fast` (greedy orders only), `default` (milliseconds), `high` (seconds),
            `exhaustive`. More effort never gives a larger arena.

    Raises:
        PlanError: an empty live range, a negative size, an alignment that is not a power of two, or sizes whose sum exceeds 64 bits.
        OptionError: an unknown effort.
    """
    if effort not in EFFORTS:
        raise OptionError(f"effort {effort!r} is unknown", fix=f"use one of {', '.join(EFFORTS)}")
    return ArenaPlan(*_C.plan(_tuples(specs), _alignment(alignment), EFFORTS.index(effort)))


def plan_groups(specs: Iterable[Spec], *, alignment: int = 64) -> ArenaPlan:
    """Plan with storage groups, as PyTorch's Static Runtime does; a baseline. Arguments as in `plan`."""
    return ArenaPlan(*_C.plan_groups(_tuples(specs), _alignment(alignment)))


def plan_conflicts(
    sizes_bytes: Iterable[int], pairs: Iterable[tuple[int, int]], *, alignment: int = 64
) -> ArenaPlan:
    """Plan values whose conflicts are given as pairs of ids instead of live ranges: the values of a pair share no byte.

    The result is validated before it is returned. `lower_bound` is the heaviest clique that was found, so a larger plan
    may still be optimal.

    Raises:
        PlanError: a pair with an unknown id, or sizes or an alignment that `plan` rejects.
    """
    rows = _tuples((0, 1, size) for size in sizes_bytes)
    return ArenaPlan(*_C.plan_conflicts([size for _, _, size in rows], list(pairs), _alignment(alignment)))


class DynamicPlan:
    """One plan for all sizes of the same buffers. It stores the vertical order of buffers instead of their offsets.

    Args:
        specs: the buffers at a typical shape, as for `plan`.
        plan: their plan; None plans them here.
        alignment: bytes, a power of two.
    """

    def __init__(self, specs: Iterable[Spec], plan: ArenaPlan | None = None, *, alignment: int = 64) -> None:
        rows = _tuples(specs)
        offsets = plan.offsets if plan else _C.plan(rows, _alignment(alignment), 1)[0]
        self._plan = _C.DynamicPlan(rows, offsets, _alignment(alignment))

    def place(self, sizes_bytes: Sequence[int]) -> ArenaPlan:
        """Offsets for other sizes, in bytes and in the order of the specs: valid for any sizes, O(n).

        Raises:
            PlanError: another number of sizes, a negative size, or sizes whose sum exceeds 64 bits.
        """
        return ArenaPlan(*self._plan.place(list(sizes_bytes)))


def validate(specs: Iterable[Spec], plan: ArenaPlan, *, alignment: int = 64) -> None:
    """Check a plan with code that shares nothing with the planner.

    Raises:
        InternalError: names the first broken invariant: overlap, alignment, arena, bound or verdict.
    """
    _C.validate_plan(
        _tuples(specs),
        plan.offsets,
        plan.arena_bytes,
        plan.lower_bound,
        plan.proved_optimal,
        _alignment(alignment),
    )
