"""`staticrt memory FILE`: draw a memory snapshot."""

from __future__ import annotations

import argparse
from pathlib import Path

from staticrt.errors import InputError
from staticrt.report.drawing import format_bytes, png_possible
from staticrt.report.memory_plot import load_snapshot, plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw a memory snapshot (of staticrt.memory.dump_snapshot or torch.cuda.memory._dump_snapshot): memory "
        "over time and the blocks of each segment. Writes FILE.svg, and FILE.png if matplotlib is installed."
    )
    parser.add_argument("file", metavar="FILE", help="a pickle or JSON file")
    parser.add_argument("-o", "--output", metavar="IMAGE", help="one image instead: .svg or .png")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="device number (0)")


def main(args: argparse.Namespace) -> int:
    snapshot = load_snapshot(args.file)
    if args.device < 0:
        raise InputError(f"device number is {args.device}")
    segments = [each for each in snapshot["segments"] if each.get("device", 0) == args.device]
    try:
        drawing = plot(snapshot, args.device)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"this is no memory snapshot: {error!r}", at=args.file) from error
    if args.output:
        outputs = [Path(args.output)]
    else:
        outputs = [Path(args.file).with_suffix(".svg")]
        if png_possible():
            outputs.append(outputs[0].with_suffix(".png"))
    for output in outputs:
        drawing.save(output)
    print(f"segments:  {len(segments)}")
    for name, key in (("reserved", "total_size"), ("active", "active_size"), ("allocated", "allocated_size")):
        print(f"{name + ':':10} {format_bytes(sum(each[key] for each in segments))}")
    for output in outputs:
        print(f"written:   {output}")
    return 0
