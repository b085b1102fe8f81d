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

from staticrt.archive import literals, package, structures
from staticrt.archive.exported import export
from staticrt.archive.files import replace_file
from staticrt.archive.guards import lower_guards
from staticrt.archive.programs import BUFFER, CONSTANT, PARAMETER, TEMPORARY_BUFFER
from staticrt.errors import ArchiveError
from staticrt.executor.executor import Executor
from staticrt.executor.explanation import explanation
from staticrt.executor.prepare import example_arguments
from staticrt.executor.state import ExecutorState
from staticrt.frontend.arguments.structure import Structure
from staticrt.frontend.guards.process_state import autocast_text
from staticrt.graphs.compiled import CapturedExecutable
from staticrt.native import _C
from staticrt.runtime.cached_trace import CachedTrace, tensor_metadata
from staticrt.runtime.executable import StaticExecutable
from staticrt.runtime.explain.explanation import operator_counts

# As LeafKind and SizeSymbol::Prop in csrc/archive/trace_record.h.
_TENSOR, _INT, _LITERAL = range(3)
_PROPS = {"size": 0, "stride": 1, "value": 2}

Trace = tuple[tuple[Any, ...], CachedTrace]  # key, entry


def save(
    compiled: Any,
    path: str | os.PathLike[str] | IO[bytes],
    example_inputs: Any = None,
    *,
    exported_program: bool = True,
    packed_weights: bool = True,
    cpu_features: Sequence[str] = (),
) -> None:
    """Save a compiled model: all its traces, its weights, and an ExportedProgram.

    `staticrt.load` and C++ run the file without the model's Python code; `torch.export.load` opens it as well. Weights
    are stored once, as raw bytes, and are memory-mapped when loaded. An existing file is replaced only by a complete one.

    Args:
        compiled: the result of `staticrt.compile`.
        path: a file name, usually ending in `.pt2`, or a binary file.
        example_inputs: as in `staticrt.compile`. The model is traced for them first, so that no call is needed.
        exported_program: also export the model for `torch.export.load`. If torch.export cannot trace the model, a
            warning says so, and the archive has no such part.
        packed_weights: also store weights that calls have packed for this machine's kernels, so that the first call
            after loading need not pack them. Takes about as many bytes as the weights; other machines pack their own.
        cpu_features: instruction sets ("AVX2", "AVX512") that a loading machine must have. By default none, because loading
            selects the kernels. Give them if results must come from the same kernels on all machines.

    Raises:
        ArchiveError: the model has no trace or refuses `example_inputs`, or a trace holds an object that cannot be saved.
    """
    executor = compiled.__inspectable__() if hasattr(type(compiled), "__inspectable__") else None
    if not isinstance(executor, Executor):
        raise ArchiveError(
            f"staticrt.save takes a result of staticrt.compile, got {type(compiled).__name__}",
            fix="staticrt.save(staticrt.compile(module), path, example_inputs=...)",
        )
    if example_inputs is not None:
        ready = executor.prepare(*example_arguments(example_inputs))
        if ready.raised:
            raise ArchiveError(f"example_inputs are {ready}", fix="pass inputs that the model takes")
    state = executor.snapshot()
    traces = _traces(state)
    builder = _C.ArchiveBuilder()
    _add_weights(builder, state, traces)
    parameters = _parameters(state.function)
    for key, entry in traces:
        names = [name for name, _kind, _default in parameters]
        builder.trace({**_trace(key, entry, names), "packed_weights": packed_weights})
    facts = {
        "staticrt_version": _C.version(),
        "torch_version": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_features": [feature.upper() for feature in cpu_features],
        "name": state.name,
        "calling": json.dumps(parameters),
    }
    exported = _exported(state, traces) if exported_program else None
    if exported is not None:
        try:
            _write(path, lambda file: package.write_package(file, builder, facts, exported))
            return
        except package.NotStored as error:  # for example, results that are namedtuples
            _warn_not_exported("store", state.name, error.reason, stacklevel=2)
    _write(path, lambda file: package.write_package(file, builder, facts, None))


def _traces(state: ExecutorState) -> list[Trace]:
    """The traces that are valid for the model's present state."""
    found: list[Trace] = []
    for key, entries in state.keyed.items():
        found += [
            (key, entry)
            for entry in entries
            if _executable(entry) is not None
            and tensor_metadata(entry.traced.values) == entry.metadata
            and entry.state.holds()
        ]
    if found:
        return found
    why = "; ".join(explanation(state).notes)
    raise ArchiveError(
        f"{state.name} has no trace to save" + (f": {why}" if why else ""),
        fix="call it once under torch.no_grad(), or pass example_inputs=; explain() says what runs eagerly",
    )


def _executable(entry: CachedTrace) -> StaticExecutable | None:
    """What runs the trace, captured or not. None: nothing that an archive can hold."""
    found = entry.executable.inner if isinstance(entry.executable, CapturedExecutable) else entry.executable
    return found if isinstance(found, StaticExecutable) else None


def _add_weights(builder: _C.ArchiveBuilder, state: ExecutorState, traces: Sequence[Trace]) -> None:
    named: set[int] = set()
    module = state.function
    if isinstance(module, torch.nn.Module):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            builder.weight(name, PARAMETER, parameter.detach())
            named.add(id(parameter))
        lasting = module.state_dict(keep_vars=True)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            builder.weight(name, BUFFER if name in lasting else TEMPORARY_BUFFER, buffer.detach())
            named.add(id(buffer))
    for _key, entry in traces:
        specs = [spec for spec in entry.traced.inputs if spec.kind != "user"]
        for spec, value in zip(specs, entry.traced.values, strict=True):
            if id(value) not in named:
                named.add(id(value))
                builder.weight(str(spec.target), CONSTANT, value.detach())


def _parameters(function: Callable[..., Any]) -> list[list[Any]]:
    """Name, kind and (if JSON can hold it) default of each parameter of the model's call."""
    kind: Any = type(function)
    if hasattr(kind, "call_parameters"):  # an ONNX model, whose argument names need not be Python names
        return [
            [name, "POSITIONAL_OR_KEYWORD", [literals.encode(None)] if optional else []]
            for name, optional in kind.call_parameters(function)
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


def _trace(key: tuple[Any, ...], entry: CachedTrace, names: Sequence[str]) -> dict[str, Any]:
    traced = entry.traced
    executable = _executable(entry)
    assert executable is not None
    parts = key[2:]
    same = dict(traced.same)
    empty = {index: dims for index, *dims in key[1][-1]}
    inputs = {leaf: position for position, leaf in enumerate(traced.user_leaves)}
    paths = _leaf_names(traced.in_spec, names)
    return {
        "program": executable.program,
        "executable": executable.native,
        "model_tensors": [value.detach() for value in traced.values],
        "leaves": [
            {
                **_leaf(part, paths[index], inputs.get(index, -1), dict(entry.ints).get(index)),
                "same": same.get(index, -1),
                "empty_dims": sum(1 << dim for dim in empty.get(index, ())),
            }
            for index, part in enumerate(parts)
        ],
        "symbols": [(s.name, s.leaf, _PROPS[s.prop], s.dim) for s in traced.guards.symbols],
        "guards": lower_guards(traced.guards),
        "guard_texts": [str(guard) for guard in traced.guards.guards],
        "autocast": autocast_text(key[1][0]),
        "decided": bool(traced.decided),
        "random": traced.random,
        "asks_layout": traced.asks_layout,
        "outputs": [item if kind == "tensor" else -1 for kind, item in executable.outputs],
        "structure": json.dumps(
            {
                "arguments": structures.encode(traced.in_spec),
                "results": structures.encode_result(traced.out_spec),
                "constants": [_output_constant(kind, item) for kind, item in executable.outputs],
                "report": {
                    "operators": operator_counts(traced),
                    "passes": list(executable.pass_lines()),
                    "mutates": [spec.name for spec in traced.inputs if spec.mutated],
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
    """Describe one leaf by its part of the trace's key (runtime/call_key.py)."""
    if part is int:
        if fixed_int is None:
            return {"kind": _INT, "name": name, "input": position}
        return {"kind": _LITERAL, "name": name, "constant": literals.dumps(fixed_int), "input": -1}
    if isinstance(part, tuple) and len(part) == 7:
        dtype, device, dim, layout, *_ = part
        layout = None if layout is None else list(layout)
        return {
            "kind": _TENSOR,
            "name": name,
            "dtype": dtype,
            "device": device,
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


def _output_constant(kind: str, item: Any) -> Any:
    if kind == "tensor":
        return None
    try:
        return literals.encode(item)
    except literals.NotLiteral as error:
        raise ArchiveError(
            f"an archive cannot hold a result of type {error}", fix="return tensors, numbers, strings or None"
        ) from None


def _exported(state: ExecutorState, traces: Sequence[Trace]) -> torch.export.ExportedProgram | None:
    key, entry = traces[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return export(state.function, entry, key[2:])
    except Exception as error:
        _warn_not_exported("trace", state.name, error, stacklevel=3)
        return None


def _warn_not_exported(what: str, name: str, error: BaseException, stacklevel: int) -> None:
    first = str(error).strip().split("\n")[0][:200]
    warnings.warn(
        f"staticrt.save: torch.export cannot {what} {name}, so torch.export.load will not open the archive"
        f" (staticrt.load and C++ will): {type(error).__name__}: {first}",
        stacklevel=stacklevel + 1,
    )


def _write(path: str | os.PathLike[str] | IO[bytes], write: Callable[[IO[bytes]], None]) -> None:
    if hasattr(path, "write") and not isinstance(path, os.PathLike):
        # torch's writer needs offsets from the start of a file, so write to a buffer first.
        buffer = io.BytesIO()
        write(buffer)
        path.write(buffer.getvalue())
        return
    try:
        replace_file(path, write, suffix=".pt2")
    except OSError as error:
        raise ArchiveError(f"cannot write archive {os.fspath(path)!r}: {error.strerror or error}") from error
