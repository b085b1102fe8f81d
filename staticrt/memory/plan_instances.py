"""Planning instances in CSV files: one buffer per line."""

from __future__ import annotations

import csv
from pathlib import Path

from staticrt.errors import InputError

# field -> accepted names in the header
COLUMNS = {
    "begin": ("lower", "begin", "start"),
    "end": ("upper", "end"),
    "size": ("size", "size_bytes"),
}


def read_specs(path: str | Path) -> list[tuple[int, int, int]]:
    """Rows of a CSV file as `(begin, end, size_bytes)`, in row order.

    Raises:
        InputError: the file cannot be read, lacks one of the columns, or has a row without integers in them.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read {path}: {reason}", fix="give a readable CSV file") from None
    lines = csv.reader(text.splitlines())
    header = [name.strip().lower() for name in next(lines, [])]
    where = {}
    for what, names in COLUMNS.items():
        found = [header.index(name) for name in names if name in header]
        if not found:
            raise InputError(
                f"no column {names[0]!r}; the header has {', '.join(header) or 'nothing'}",
                at=f"{path}, line 1",
                fix="begin the file with a line such as id,lower,upper,size",
            )
        where[what] = found[0]
    specs = []
    for row in lines:
        if not any(cell.strip() for cell in row):
            continue
        try:
            begin, end, size = (int(row[where[what]]) for what in COLUMNS)
        except (ValueError, IndexError):
            raise InputError(
                f"expected integers for lower, upper and size, got {','.join(row)!r}",
                at=f"{path}, line {lines.line_num}",
                fix="write one buffer per line, as in the header",
            ) from None
        specs.append((begin, end, size))
    return specs
