"""`staticrt plan FILE.csv…`: plan memory for instances in CSV files."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path

from staticrt.errors import InputError, StaticRuntimeError
from staticrt.planner import EFFORTS, ArenaPlan, plan

# what we read -> names it may have in the header
COLUMNS = {
    "begin": ("lower", "begin", "start"),
    "end": ("upper", "end"),
    "size": ("size", "size_bytes"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plan memory for CSV files: a header with lower, upper, size (others are ignored), then one buffer "
        "per line, live on [lower, upper). Prints offsets in row order, arena_bytes, lower_bound, proved_optimal."
    )
    parser.add_argument("files", nargs="+", metavar="FILE.csv")
    parser.add_argument("--effort", choices=EFFORTS, default="default", help="budget of search nodes")
    parser.add_argument("--alignment", type=int, default=64, metavar="BYTES", help="a power of two (64)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per file, one per line")


def read_specs(path: str | Path) -> list[tuple[int, int, int]]:
    """Rows of a CSV file as `(begin, end, size_bytes)`, in row order.

    Raises:
        InputError: the file can't be read, has no such header, or a row without integers there.
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


def _print(path: str, result: ArenaPlan, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": path, **vars(result)}))
        return
    print(f"file: {path}")
    print(f"arena_bytes: {result.arena_bytes}")
    print(f"lower_bound: {result.lower_bound}")
    print(f"proved_optimal: {'true' if result.proved_optimal else 'false'}")
    print(f"offsets: {' '.join(map(str, result.offsets))}")


def main(args: argparse.Namespace) -> int:
    """Plans every file it can; 2 if one of them could not be planned."""
    code = 0
    for path in args.files:
        try:
            result = plan(read_specs(path), alignment=args.alignment, effort=args.effort)
        except StaticRuntimeError as error:
            print(f"staticrt plan: {path}: {error}", file=sys.stderr)
            code = 2
            continue
        _print(path, result, args.json)
    return code
