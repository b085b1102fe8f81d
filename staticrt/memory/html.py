"""HTML fragments that notebooks show for reports: escaped, without scripts, styles or links of a page around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def title(text: str) -> str:
    return f"<p><b>{escape(text)}</b></p>"


def table(rows: Iterable[Sequence[Any]], headers: Sequence[str], align: Sequence[str] | None = None) -> str:
    """A table whose cells are the text of the values.

    Args:
        align: "left" or "right" for each column; None: all left.
    """
    from tabulate import tabulate  # loads tables of characters that `compile` does not need

    cells = [[str(cell) for cell in row] for row in rows]
    return str(
        tabulate(cells, headers, tablefmt="html", disable_numparse=True, colalign=align if cells else None)
    )


def lines(texts: Iterable[str]) -> str:
    """One item of a list per text; "" where there is none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def folded(summary: str, text: str) -> str:
    """Preformatted text that the reader unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{preformatted(text)}</details>"
