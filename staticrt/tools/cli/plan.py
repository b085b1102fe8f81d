"""`staticrt plan`: the memory plan of a model, or plans for instances in CSV files."""

from __future__ import annotations

import argparse
import sys

from staticrt.errors import InputError, StaticRuntimeError
from staticrt.memory.plan_instances import read_specs
from staticrt.memory.planner import EFFORTS, ArenaPlan, plan
from staticrt.tools.cli.loading import MODEL_HELP, add_model_options, names_model
from staticrt.tools.cli.model_memory import plan_model
from staticrt.tools.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plan memory. Of a MODEL: compile it, run it once, and show the plan of its prepared program. "
        "Of CSV files: a header with lower, upper, size (others are ignored), then one buffer "
        "per line, live on [lower, upper). Prints offsets in row order, arena_bytes, lower_bound, proved_optimal."
    )
    parser.add_argument("files", nargs="*", metavar="MODEL | FILE.csv", help=f"CSV files, or {MODEL_HELP}")
    add_model_options(parser)
    parser.add_argument("--effort", choices=EFFORTS, default="default", help="budget of search nodes")
    parser.add_argument("--alignment", type=int, default=64, metavar="BYTES", help="a power of two (64)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per file, one per line")


def _print(path: str, result: ArenaPlan, as_json: bool) -> None:
    if as_json:
        print_json({"file": path, **vars(result)})
        return
    print(f"file: {path}")
    print(f"arena_bytes: {result.arena_bytes}")
    print(f"lower_bound: {result.lower_bound}")
    print(f"proved_optimal: {'true' if result.proved_optimal else 'false'}")
    print(f"offsets: {' '.join(map(str, result.offsets))}")


def main(args: argparse.Namespace) -> int:
    """Plans every file it can; 2 if one of them could not be planned."""
    if len(args.files) == 1 and names_model(args.files[0]):
        args.model = args.files[0]
        return plan_model(args)
    if not args.files:
        raise InputError("no files to plan", fix="give a model or CSV files")
    code = 0
    for path in args.files:
        try:
            result = plan(read_specs(path), alignment=args.alignment, effort=args.effort)
        except StaticRuntimeError as error:
            print(f"staticrt plan: {path}: {error}", file=sys.stderr)
            if args.json:
                print_json({"file": path, "error": str(error)})
            code = 2
            continue
        _print(path, result, args.json)
    return code
