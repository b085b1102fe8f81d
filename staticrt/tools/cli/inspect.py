"""`staticrt inspect MODEL`: which parts of a model are compiled, which run eagerly, and why."""

from __future__ import annotations

import argparse
from typing import Any

from staticrt.tools.cli.call import call
from staticrt.tools.cli.loading import add_model_arguments, prepare_model
from staticrt.tools.cli.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--details", action="store_true", help="every node: its kind, kernel, shapes and model line"
    )
    parser.add_argument(
        "--draw", metavar="FILE", help="draw the graph: .svg, .html, .dot, or .png (needs matplotlib)"
    )
    parser.add_argument("--metrics", action="store_true", help="also counters: nodes, memory, signatures")
    parser.add_argument(
        "--signature",
        action="store_true",
        help="instead: names, dtypes and sizes of inputs and outputs, as the Open Inference Protocol has them",
    )
    parser.add_argument(
        "--triton",
        action="store_true",
        help="instead: a config.pbtxt for the Triton backend of examples/triton_backend",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    loaded, compiled, inputs, keywords = prepare_model(args)
    if args.signature or args.triton:
        return _show_signature(args, loaded.name, compiled, inputs, keywords)
    # The first call traces the model; the second runs the prepared program.
    for _ in range(2):
        call(f"compiling {loaded.name}", compiled, *inputs, **keywords)
    explanation = compiled.explain()
    metrics = compiled.metrics() if args.metrics else None
    if args.draw:
        compiled.draw(args.draw)
    if args.json:
        document = {"model": loaded.name, "source": loaded.source, "explain": explanation.to_dict()}
        if metrics is not None:
            document["metrics"] = metrics.to_dict()
        print_json(document)
        return 0
    print(explanation.details() if args.details else explanation)
    if metrics is not None:
        print(f"\n{metrics}")
    if args.draw:
        print(f"written: {args.draw}")
    return 0


def _show_signature(
    args: argparse.Namespace, name: str, compiled: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> int:
    from staticrt.tools.cli.signature import signature, to_pbtxt

    stem = name.removesuffix(".pt2")
    found = call(f"calling {name}", signature, stem, compiled, inputs, keywords)
    document = found.to_triton(f"{stem}.pt2") if args.triton else found.to_v2()
    if args.triton and not args.json:
        print(to_pbtxt(document))
    else:
        print_json(document)
    return 0
