"""`staticrt profile MODEL`: where a call's time goes."""

from __future__ import annotations

import argparse
from typing import Any

from staticrt.errors import OptionError
from staticrt.tools.cli.call import call
from staticrt.tools.cli.loading import add_model_arguments, prepare_model
from staticrt.tools.cli.output import print_json
from staticrt.tools.report.first_call import first_call
from staticrt.tools.report.profile import ProfileReport, kind_table, profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--runs", type=int, default=20, metavar="N", help="traced calls (20); figures are medians"
    )
    parser.add_argument("--by", choices=("node", "op", "kind", "line"), default="node", help="rows (node)")
    parser.add_argument("--sort", choices=("time", "order"), default="time", help="order of nodes (time)")
    parser.add_argument("--limit", type=int, metavar="N", help="rows shown (25; 0: all)")
    parser.add_argument(
        "--trace", metavar="FILE.json", help="write a Chrome trace: open it in ui.perfetto.dev"
    )
    parser.add_argument(
        "--first-call",
        action="store_true",
        help="where the time of the first call goes instead: trace, shapes, passes, planning, first run",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    if args.runs < 1:
        raise OptionError(f"--runs {args.runs}: expected at least 1")
    if args.limit is not None and args.limit < 0:
        raise OptionError(f"--limit {args.limit}: expected at least 0")
    if args.first_call and args.trace:
        raise OptionError("--trace: a first call has no trace", fix="leave out --trace or --first-call")
    loaded, compiled, inputs, keywords = prepare_model(args)
    if args.first_call:
        return _first_call(args, loaded.name, compiled, inputs, keywords)
    report: ProfileReport = call(
        f"profiling {loaded.name}",
        lambda: profile(compiled, inputs, keywords, name=loaded.name, runs=args.runs),
    )
    if args.trace:
        report.to_chrome_trace(args.trace)
    if args.json:
        print_json(report.to_dict())
        return 0
    print(report.summary())
    print()
    if args.by == "node":
        print(report.table(_limit(args.limit), args.sort))
    else:
        rows = {"op": report.by_op, "kind": report.by_kind, "line": report.by_line}[args.by]()
        print(kind_table(args.by, rows[: _limit(args.limit)]))
    if args.trace:
        print(f"\nwritten: {args.trace}")
    return 0


def _first_call(
    args: argparse.Namespace, name: str, compiled: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> int:
    found = call(
        f"calling {name}",
        lambda: first_call(
            compiled, inputs, keywords, name=name, limit=10 if args.limit is None else _limit(args.limit)
        ),
    )
    if args.json:
        print_json(found.to_dict())
    else:
        print(found)
    return 0


def _limit(asked: int | None) -> int | None:
    return 25 if asked is None else asked or None
