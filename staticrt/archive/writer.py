"""`staticrt.save`: a compiled model as a file."""

from __future__ import annotations

import inspect
import io
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import IO, Any

import torch

import staticrt
from staticrt.archive import literals, package, structures
from staticrt.archive.exported import export
from staticrt.archive.guards import lower_guards
from staticrt.compiled import Engine
from staticrt.compiler import CompiledFunction, CompiledModule
from staticrt.entry import Entry, tensor_metadata
from staticrt.errors import ArchiveError
from staticrt.executable import StaticExecutable
from staticrt.files import replace_file
from staticrt.frontend.structure import Structure
from staticrt.native import _C
from staticrt.report.explain import operator_counts

# As WeightKind in csrc/archive/archive.h.
_PARAMETER, _BUFFER, _TEMPORARY_BUFFER, _CONSTANT = range(4)
# As LeafKind and SizeSymbol::Prop in csrc/archive/capture.h.
_TENSOR, _INT, _LITERAL = range(3)
_PROPS = {"size": 0, "stride": 1, "value": 2}

Capture = tuple[tuple[Any, ...], Entry]  # key, entry


def save(
    compiled: CompiledModule | CompiledFunction,
    path: str | os.PathLike[str] | IO[bytes],
    example_inputs: Any = None,
    *,
    exported_program: bool = True,
    packed_weights: bool = True,
    cpu_features: Sequence[str] = (),
) -> None:
    """Save a compiled model: every capture made so far, its weights, and an ExportedProgram.

    `staticrt.load` and C++ run the file without the model's Python code; `torch.export.load` opens it too. Weights
    are stored once, raw, and are mapped when loaded. A file is replaced only when it is complete.

    Args:
        compiled: what `staticrt.compile` returned.
        path: a file name, usually ending in `.pt2`, or a binary file.
        example_inputs: as in `staticrt.compile`: capture for these first, so that no call is needed.
        exported_program: also write what `torch.export.load` reads, from one more trace. Where torch.export
            cannot trace the model, a warning says so and the archive has no such part.
        packed_weights: also keep what calls so far made of the weights for this machine's kernels, so that the first
            call after loading need not. Takes about as much room as the weights; other machines make their own.
        cpu_features: instruction sets ("AVX2", "AVX512") that a loading machine must have. None is needed: kernels
            are chosen where the archive is loaded. Name them where results must come from the same ones.

    Raises:
        ArchiveError: nothing is captured, or a capture holds what no file can (see the message).
    """
    if not isinstance(compiled, (CompiledModule, CompiledFunction)):
        raise ArchiveError(
            f"staticrt.save takes what staticrt.compile returned, got {type(compiled).__name__}",
            fix="staticrt.save(staticrt.compile(module), path, example_inputs=...)",
        )
    engine = compiled._engine
    if example_inputs is not None:
        if isinstance(example_inputs, torch.Tensor):
            example_inputs = (example_inputs,)
        args = () if isinstance(example_inputs, dict) else tuple(example_inputs)
        engine.prepare(args, dict(example_inputs) if isinstance(example_inputs, dict) else {})
    captures = _captures(engine)
    builder = _C.ArchiveBuilder()
    _add_weights(builder, engine, captures)
    parameters = _parameters(engine.function)
    for key, entry in captures:
        names = [name for name, _kind, _default in parameters]
        builder.capture({**_capture(key, entry, names), "packed_weights": packed_weights})
    facts = {
        "staticrt_version": staticrt.__version__,
        "torch_version": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_features": [feature.upper() for feature in cpu_features],
        "name": engine.name,
        "calling": json.dumps(parameters),
    }
    exported = _exported(engine, captures) if exported_program else None
    if exported is not None:
        try:
            _write(path, lambda file: package.write_package(file, builder, facts, exported))
            return
        except package.NotStored as error:  # results that are namedtuples, say
            _warn_not_exported("store", engine.name, error.reason, stacklevel=2)
    _write(path, lambda file: package.write_package(file, builder, facts, None))


def _captures(engine: Engine) -> list[Capture]:
    """The captures that hold for the model as it is now."""
    found: list[Capture] = []
    for key, entries in engine._entries.items():
        found += [
            (key, entry)
            for entry in entries
            if isinstance(entry.executable, StaticExecutable)
            and tensor_metadata(entry.captured.values) == entry.metadata
            and entry.state.holds()
        ]
    if found:
        return found
    why = "; ".join(engine.explain().notes)
    raise ArchiveError(
        f"{engine.name} has no capture to save" + (f": {why}" if why else ""),
        fix="call it once under torch.no_grad(), or pass example_inputs=; explain() says what runs eagerly",
    )


def _add_weights(builder: _C.ArchiveBuilder, engine: Engine, captures: Sequence[Capture]) -> None:
    named: set[int] = set()
    module = engine.function
    if isinstance(module, torch.nn.Module):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            builder.weight(name, _PARAMETER, parameter.detach())
            named.add(id(parameter))
        lasting = module.state_dict(keep_vars=True)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            builder.weight(name, _BUFFER if name in lasting else _TEMPORARY_BUFFER, buffer.detach())
            named.add(id(buffer))
    for _key, entry in captures:
        specs = [spec for spec in entry.captured.inputs if spec.kind != "user"]
        for spec, value in zip(specs, entry.captured.values, strict=True):
            if id(value) not in named:
                named.add(id(value))
                builder.weight(str(spec.target), _CONSTANT, value.detach())


def _parameters(function: Callable[..., Any]) -> list[list[Any]]:
    """Name, kind and default of each parameter of the model's call, as far as JSON holds it."""
    if hasattr(function, "call_parameters"):  # a model whose arguments have no Python names (ONNX)
        return [
            [name, "POSITIONAL_OR_KEYWORD", [literals.encode(None)] if optional else []]
            for name, optional in function.call_parameters()
        ]
    call = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return []
    found: list[list[Any]] = []
    for parameter in parameters:
        try:
            default = [] if parameter.default is parameter.empty else [literals.encode(parameter.default)]
        except literals.NotLiteral:
            default = []
        found.append([parameter.name, parameter.kind.name, default])
    return found


def _capture(key: tuple[Any, ...], entry: Entry, names: Sequence[str]) -> dict[str, Any]:
    captured = entry.captured
    executable = entry.executable
    assert isinstance(executable, StaticExecutable)
    parts = key[2:]
    same = dict(captured.same)
    empty = {index: dims for index, *dims in key[1][-1]}
    inputs = {leaf: position for position, leaf in enumerate(captured.user_leaves)}
    paths = _leaf_names(captured.in_spec, names)
    return {
        "program": executable.program,
        "executable": executable.native,
        "model_tensors": [value.detach() for value in captured.values],
        "leaves": [
            {
                **_leaf(part, paths[index], inputs.get(index, -1), dict(entry.ints).get(index)),
                "same": same.get(index, -1),
                "empty_dims": sum(1 << dim for dim in empty.get(index, ())),
            }
            for index, part in enumerate(parts)
        ],
        "symbols": [(s.name, s.leaf, _PROPS[s.prop], s.dim) for s in captured.guards.symbols],
        "guards": lower_guards(captured.guards),
        "guard_texts": [str(guard) for guard in captured.guards.guards],
        "autocast": _autocast(key[1]),
        "decided": bool(captured.decided),
        "random": captured.random,
        "outputs": [item if kind == "tensor" else -1 for kind, item in executable.outputs],
        "structure": json.dumps(
            {
                "arguments": structures.encode(captured.in_spec),
                "results": structures.encode_result(captured.out_spec),
                "constants": [_output_constant(kind, item) for kind, item in executable.outputs],
                "report": {
                    "operators": operator_counts(captured),
                    "passes": list(executable.pass_lines()),
                    "mutates": [spec.name for spec in captured.inputs if spec.mutated],
                },
            }
        ),
    }


def _leaf_names(spec: Structure, names: Sequence[str]) -> list[str]:
    positional, keywords = spec.children
    paths: list[str] = []
    for index, child in enumerate(positional.children):
        name = names[index] if index < len(names) else f"argument {index}"
        paths += structures.leaf_paths(child, name)
    for name, child in zip(keywords.context, keywords.children, strict=True):
        paths += structures.leaf_paths(child, str(name))
    return paths


def _leaf(part: Any, name: str, position: int, fixed_int: int | None) -> dict[str, Any]:
    """One leaf from its part of the capture's key (frontend/keys.py)."""
    if part is int:
        if fixed_int is None:
            return {"kind": _INT, "name": name, "input": position}
        return {"kind": _LITERAL, "name": name, "constant": literals.dumps(fixed_int), "input": -1}
    if isinstance(part, tuple) and len(part) == 7:
        dtype, _device, dim, layout, *_ = part
        layout = None if layout is None else list(layout)
        return {
            "kind": _TENSOR,
            "name": name,
            "dtype": dtype,
            "dim": dim,
            "layout": layout,
            "input": position,
        }
    try:
        kind, value = part
        text = literals.dumps(float(value) if kind is float else value)
    except (TypeError, literals.NotLiteral):
        raise ArchiveError(
            f"an archive cannot hold the argument {name!r}: it is neither a tensor nor a constant",
            fix="pass tensors, numbers, strings, None, and tuples, lists or dicts of these",
        ) from None
    return {"kind": _LITERAL, "name": name, "constant": text, "input": -1}


def _autocast(environment: tuple[Any, ...]) -> str:
    cpu, cuda = environment[3], environment[4]
    named = [("cpu", cpu), ("cuda", cuda)]
    return ",".join(f"{device}:{_SCALAR_NAMES[dtype]}" for device, dtype in named if dtype is not None)


# What c10::toString calls the dtypes that autocast takes.
_SCALAR_NAMES = {
    torch.bfloat16: "BFloat16",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
}


def _output_constant(kind: str, item: Any) -> Any:
    if kind == "tensor":
        return None
    try:
        return literals.encode(item)
    except literals.NotLiteral as error:
        raise ArchiveError(
            f"an archive cannot hold a result of type {error}", fix="return tensors, numbers, strings or None"
        ) from None


def _exported(engine: Engine, captures: Sequence[Capture]) -> torch.export.ExportedProgram | None:
    key, entry = captures[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return export(engine.function, entry, key[2:])
    except Exception as error:
        _warn_not_exported("trace", engine.name, error, stacklevel=3)
        return None


def _warn_not_exported(what: str, name: str, error: BaseException, stacklevel: int) -> None:
    first = str(error).strip().split("\n")[0][:200]
    warnings.warn(
        f"staticrt.save: torch.export cannot {what} {name}, so torch.export.load will not open the archive"
        f" (staticrt.load and C++ will): {type(error).__name__}: {first}",
        stacklevel=stacklevel + 1,
    )


def _write(path: str | os.PathLike[str] | IO[bytes], write: Callable[[IO[bytes]], None]) -> None:
    if not isinstance(path, (str, os.PathLike)):
        # torch's writer wants its own offsets, so the archive is made apart.
        buffer = io.BytesIO()
        write(buffer)
        path.write(buffer.getvalue())
        return
    try:
        replace_file(path, write, suffix=".pt2")
    except OSError as error:
        raise ArchiveError(f"cannot write archive {os.fspath(path)!r}: {error.strerror or error}") from error
