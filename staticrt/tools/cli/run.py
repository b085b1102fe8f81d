"""`staticrt run MODEL`: run a model once, show its results, compare them with eager."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError, OptionError
from staticrt.tools.cli.call import call, describe_result
from staticrt.tools.cli.loading import LoadedModel, add_model_arguments, prepare_model
from staticrt.tools.cli.output import print_json
from staticrt.tools.report.compare import copied, difference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--check", action="store_true", help="compare with eager; exit code 1 if results differ"
    )
    parser.add_argument("--rtol", type=float, help="relative tolerance of --check (by dtype)")
    parser.add_argument("--atol", type=float, help="absolute tolerance of --check (by dtype)")
    parser.add_argument("--save", metavar="FILE.pt", help="save the results (torch.save: a tensor or a list)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    if (args.rtol is None) != (args.atol is None):
        raise OptionError("--rtol and --atol are given together or not at all")
    if args.save and Path(args.save).suffix not in (".pt", ".pth"):
        raise OptionError(f"--save {args.save}: name it .pt")
    if args.save and not Path(args.save).absolute().parent.is_dir():
        raise OptionError(f"--save {args.save}: there is no such folder")
    loaded, compiled, inputs, keywords = prepare_model(args)
    before = copied((inputs, keywords))
    begin = time.perf_counter()
    result = call(f"compiling and running {loaded.name}", compiled, *inputs, **keywords)
    first = time.perf_counter() - begin
    document: dict[str, Any] = {
        "model": loaded.name,
        "source": loaded.source,
        "first_answer_s": first,
        "outputs": describe_result(result),
    }
    code = 0
    if args.check:
        document["check"] = _check(args, loaded, compiled, before, result)
        code = 0 if document["check"]["ok"] else 1
    if args.save:
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        torch.save(leaves[0] if len(leaves) == 1 else leaves, args.save)
    if args.json:
        print_json(document)
    else:
        print(_text(document))
    return code


def _check(
    args: argparse.Namespace, loaded: LoadedModel, compiled: Any, before: tuple[Any, Any], result: Any
) -> dict[str, Any]:
    if loaded.eager is None:
        raise InputError(f"{loaded.name} has no eager form to compare with", fix="leave out --check")
    inputs, keywords = copied(before)
    expected = call(f"running {loaded.name} eagerly", loaded.eager, *inputs, **keywords)
    off = difference(result, expected, args.rtol, args.atol)
    if not off:
        return {"ok": True}
    found = {"ok": False, "difference": off}
    if hasattr(compiled, "compare"):
        again, again_keywords = copied(before)
        report = call(
            "looking for the first node that is off",
            lambda: compiled.compare(*again, rtol=args.rtol, atol=args.atol, **again_keywords),
        )
        found["first_off"] = str(report)
    return found


def _text(document: dict[str, Any]) -> str:
    lines = [f"{document['model']}: first answer after {document['first_answer_s'] * 1e3:.1f} ms"]
    for output in document["outputs"]:
        if "sizes" not in output:
            lines.append(f"  {output['name']}: {output.get('value')}")
            continue
        line = f"  {output['name']}: {output['dtype']}{output['sizes']}"
        if output.get("min") is not None:
            line += f"  min {output['min']:.6g}, mean {output['mean']:.6g}, max {output['max']:.6g}"
        elif output.get("finite") is False:
            line += "  holds infinities or NaN"
        lines.append(line)
    if "check" in document:
        check = document["check"]
        lines.append(
            "  check: equal to eager"
            if check["ok"]
            else f"  check: differs from eager: {check['difference']}"
        )
        if "first_off" in check:
            lines.append(check["first_off"])
    return "\n".join(lines)
