"""Tables of text, as every part of the benchmark prints them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate


def table(rows: Sequence[Sequence[Any]], headers: Sequence[str], *, left: Sequence[int] = (0,)) -> str:
    """Rows under headers: figures, which end at the right, and words in the columns `left`."""
    align = ["right"] * len(headers)
    for column in left:
        align[column] = "left"
    return tabulate(rows, headers, disable_numparse=True, colalign=align if rows else None)


def megabytes(sizes: Iterable[int]) -> list[str]:
    """Sizes in bytes as cells, in units of 10^6 bytes."""
    return [f"{size / 1e6:.3f}" for size in sizes]


def met(is_met: bool) -> str:
    return "met" if is_met else "missed"
