"""`staticrt memory`: draw a model's planned memory, or a memory snapshot."""

from __future__ import annotations

import argparse
from pathlib import Path

from staticrt.errors import InputError
from staticrt.memory.units import format_bytes
from staticrt.tools.cli.loading import MODEL_HELP, add_model_options, names_model
from staticrt.tools.cli.model_memory import draw_model
from staticrt.tools.cli.output import print_json
from staticrt.tools.report.drawing import png_possible
from staticrt.tools.report.memory_plot import load_snapshot, plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw memory. Of a MODEL: compile it, run it once, and draw its arena: which value holds which bytes while which "
        "node runs, peak and lower bound. Of a snapshot (of staticrt.memory.dump_snapshot or torch.cuda.memory._dump_snapshot): memory "
        "over time and the blocks of each segment. Writes NAME.svg, of snapshots also NAME.png if matplotlib is installed."
    )
    parser.add_argument("file", metavar="MODEL | SNAPSHOT", help=f"a pickle or JSON file, or {MODEL_HELP}")
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-o", "--output", metavar="IMAGE", help="the image: .svg, .html, or .png (needs matplotlib)"
    )
    parser.add_argument("--device", type=int, default=0, metavar="N", help="device number (0)")


def main(args: argparse.Namespace) -> int:
    if names_model(args.file):
        args.model = args.file
        return draw_model(args)
    snapshot = load_snapshot(args.file)
    if args.device < 0:
        raise InputError(f"device number is {args.device}")
    keys = (("reserved", "total_size"), ("active", "active_size"), ("allocated", "allocated_size"))
    try:
        segments = [each for each in snapshot["segments"] if each.get("device", 0) == args.device]
        totals = {name: sum(each[key] for each in segments) for name, key in keys}
        drawing = plot(snapshot, args.device)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"this is not a memory snapshot: {error!r}", at=args.file) from error
    if args.output:
        outputs = [Path(args.output)]
    else:
        outputs = [Path(args.file).with_suffix(".svg")]
        if png_possible():
            outputs.append(outputs[0].with_suffix(".png"))
    for output in outputs:
        drawing.save(output)
    if args.json:
        document = {"segments": len(segments), **{f"{name}_bytes": size for name, size in totals.items()}}
        print_json({**document, "written": [str(output) for output in outputs]})
        return 0
    print(f"segments:  {len(segments)}")
    for name, size in totals.items():
        print(f"{name + ':':10} {format_bytes(size)}")
    for output in outputs:
        print(f"written:   {output}")
    return 0
