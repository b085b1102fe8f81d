"""`staticrt compile MODEL -o FILE.pt2`: compile a model and save it."""

from __future__ import annotations

import argparse
from pathlib import Path

from staticrt.errors import InputError, OptionError
from staticrt.tools.cli.call import call
from staticrt.tools.cli.loading import add_model_arguments, prepare_model
from staticrt.tools.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE.pt2", help="the archive to write")
    parser.add_argument(
        "--no-export",
        action="store_true",
        help="leave out what torch.export.load reads: saving is then faster, the file smaller",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    import staticrt

    if Path(args.output).suffix != ".pt2":
        raise OptionError(f"--output {args.output}: name it .pt2")
    if Path(args.output).is_dir():
        raise OptionError(f"--output {args.output}: is a folder")
    loaded, compiled, inputs, keywords = prepare_model(args)
    if loaded.source == "archive":
        raise InputError(f"{loaded.name} is compiled already: staticrt.save wrote it", fix="copy the file")
    call(f"compiling {loaded.name}", compiled, *inputs, **keywords)
    call(
        f"saving {args.output}",
        lambda: staticrt.save(compiled, args.output, exported_program=not args.no_export),
    )
    size = Path(args.output).stat().st_size
    if args.json:
        print_json({"model": loaded.name, "archive": args.output, "bytes": size})
    else:
        print(f"{loaded.name}: written to {args.output}, {size} bytes")
    return 0
