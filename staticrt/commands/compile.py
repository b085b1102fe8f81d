"""`staticrt compile MODEL -o FILE.pt2`: compile a model and save it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from staticrt.commands.call import call
from staticrt.commands.loading import add_model_arguments, prepare_model
from staticrt.errors import OptionError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE.pt2", help="the archive to write")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    import staticrt

    if Path(args.output).suffix != ".pt2":
        raise OptionError(f"--output {args.output}: name it .pt2")
    loaded, compiled, inputs, keywords = prepare_model(args)
    call(f"compiling {loaded.name}", compiled, *inputs, **keywords)
    call(f"saving {args.output}", lambda: staticrt.save(compiled, args.output))
    size = Path(args.output).stat().st_size
    if args.json:
        print(json.dumps({"model": loaded.name, "archive": args.output, "bytes": size}))
    else:
        print(f"{loaded.name}: written to {args.output}, {size} bytes")
    return 0
