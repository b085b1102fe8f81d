"""`staticrt run MODEL`: run a model once, show its results, compare them with eager."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError, OptionError
from staticrt.frontend.arguments.names import leaf_paths
from staticrt.tools.cli.call import call, describe_result
from staticrt.tools.cli.loading import LoadedModel, add_model_arguments, prepare_model
from staticrt.tools.cli.output import print_json
from staticrt.tools.report.compare import copied


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
    try:
        _assert_close(result, expected, args.rtol, args.atol)
    except AssertionError as error:
        found = {"ok": False, "difference": str(error)}
        if hasattr(compiled, "compare"):
            again, again_keywords = copied(before)
            report = call(
                "looking for the first node that is off",
                lambda: compiled.compare(*again, rtol=args.rtol, atol=args.atol, **again_keywords),
            )
            found["first_off"] = str(report)
        return found
    return {"ok": True}


def _assert_close(result: Any, expected: Any, rtol: float | None, atol: float | None) -> None:
    """Like `torch.testing.assert_close`, for results of any kind: leaves other than tensors and numbers are compared with ==."""
    structure, expected_structure = pytree.tree_structure(result), pytree.tree_structure(expected)
    if structure != expected_structure:
        raise AssertionError(f"the results' structures differ: {structure} is not {expected_structure}")
    for (path, value), (_path, right) in zip(leaf_paths(result), leaf_paths(expected), strict=True):
        numbers = (torch.Tensor, int, float, complex)
        if isinstance(value, numbers) and isinstance(right, numbers):
            try:
                torch.testing.assert_close(value, right, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{path or 'result'}: {error}") from None
        elif type(value) is not type(right) or not _same(value, right):
            raise AssertionError(f"{path or 'result'} is {value!r}, expected {right!r}")


def _same(value: Any, right: Any) -> bool:
    try:
        return bool(value == right)
    except Exception:  # an object that cannot be compared, for example because it holds tensors
        return True


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
