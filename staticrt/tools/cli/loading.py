"""A model from the command line: an ONNX file, a .pt2 archive, or package.module:Name."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import inspect
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from staticrt.archive.checked_export import load_exported
from staticrt.errors import InputError, OptionError, StaticRuntimeError
from staticrt.frontend.progress import long_work
from staticrt.tools.cli.inputs import TensorSpec, add_input_arguments, build_inputs

MODEL_HELP = (
    "an ONNX file, a .pt2 archive (of torch.export.save or staticrt.save), or package.module:Name or "
    "file.py:Name, where Name is an nn.Module class, a module, or a function"
)


class ModelError(StaticRuntimeError):
    """The user's model raised. The message and place are those of its error."""


@dataclasses.dataclass
class LoadedModel:
    """A model ready to be compiled.

    Args:
        name: for reports.
        source: "onnx", "export" (torch.export.save), "archive" (staticrt.save), "python".
        eager: the eager form to compare with; None for an archive without its graph.
        compiled: the callable to run: compiled already, or to be compiled.
        names: the arguments' names; specs: what is known about them; required: how many have no default.
        examples: arguments that came with the model.
    """

    name: str
    source: str
    eager: Callable[..., Any] | None
    compiled: Callable[..., Any]
    names: tuple[str, ...] = ()
    specs: tuple[TensorSpec, ...] = ()
    required: int = 0
    examples: tuple[Any, ...] | None = None


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL and its options."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_model_options(parser)


def names_model(text: str) -> bool:
    """Whether this looks like a MODEL rather than like another file."""
    return Path(text).suffix.lower() in (".onnx", ".pt2") or (":" in text and not Path(text).exists())


def add_model_options(parser: argparse.ArgumentParser, shared: bool = True) -> None:
    """Declare a model's constructor arguments, options of the compiler, and inputs.

    Args:
        shared: also declare --threads and --seed, which some commands declare themselves.
    """
    parser.add_argument(
        "--init", default="{}", metavar="JSON", help="constructor arguments of a class, as a JSON object"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="an option of staticrt.compile: --option prepared=false",
    )
    parser.add_argument(
        "--allow-operator",
        action="append",
        default=[],
        metavar="NAME",
        help="an operator that a .pt2 file may call besides those of torch that compute tensors: mylib::op, mylib::*",
    )
    if shared:
        parser.add_argument("--threads", type=int, metavar="N", help="intra-op threads (torch's default)")
    add_input_arguments(parser, seed=shared)


def compile_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The --option arguments, as keywords of `staticrt.compile`.

    Raises:
        OptionError: an argument is not of the form NAME=VALUE.
    """
    options: dict[str, Any] = {}
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--option {text!r}: expected NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value  # a bare word: executor=static
    return options


def prepare_model(
    arguments: argparse.Namespace,
) -> tuple[LoadedModel, Any, tuple[Any, ...], dict[str, Any]]:
    """Load and compile the model of a command and make its inputs: (loaded, compiled callable, args, kwargs).

    Raises:
        InputError, OptionError: wrong names, files or inputs.
        ModelError: the model's own code failed while it was imported or built.
    """
    import staticrt

    if arguments.threads is not None:
        if arguments.threads < 1:
            raise OptionError(f"--threads {arguments.threads}: expected at least 1")
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    with long_work(f"loading {arguments.model}"):
        # So that the time of this import is not counted as the model's.
        importlib.import_module("staticrt.frontend.tracing.trace")
        loaded = load_model(
            arguments.model, arguments.init, compile_options(arguments), arguments.allow_operator
        )
    args, kwargs = build_inputs(arguments, loaded.names, loaded.specs, loaded.examples, loaded.required)
    compiled = loaded.compiled
    if not hasattr(type(compiled), "__inspectable__"):
        compiled = staticrt.compile(compiled, **compile_options(arguments))
    return loaded, compiled, args, kwargs


def load_model(text: str, init: str, options: dict[str, Any], allow_operators: Sequence[str]) -> LoadedModel:
    """The model that `text` names. See `prepare_model` for errors."""
    path = Path(text)
    suffix = path.suffix.lower()
    if suffix in (".onnx", ".pt2"):
        if path.is_dir():
            raise InputError(f"{text}: is a folder", fix="name the file in it")
        if not path.is_file():
            raise InputError(f"{text}: there is no such file")
        if suffix == ".onnx":
            return _load_onnx(path, options)
        return _load_pt2(path, options, allow_operators)
    if path.is_dir():
        raise InputError(f"{text}: is a folder", fix=f"MODEL is {MODEL_HELP}")
    if suffix == ".py":
        raise InputError(
            f"{text!r} names a file and no model in it", fix=f"write {text}:Name, a class or function in it"
        )
    if not text.strip(":") or text[0] == ":" or text[-1] == ":" or ":" not in text:
        raise InputError(f"{text!r} names no model", fix=f"MODEL is {MODEL_HELP}")
    return _load_python(text, init)


def _load_onnx(path: Path, options: dict[str, Any]) -> LoadedModel:
    import staticrt

    compiled = staticrt.from_onnx(path, **options)
    module: Any = compiled._module
    specs = tuple(_onnx_spec(info) for info in module.inputs)
    required = max((i + 1 for i, info in enumerate(module.inputs) if not info.optional), default=0)
    return LoadedModel(path.name, "onnx", module, compiled, module.input_names, specs, required)


def _onnx_spec(info: Any) -> TensorSpec:
    if info.dtype is None or info.shape is None:
        return TensorSpec(None, info.dtype)
    known = all(isinstance(size, int) for size in info.shape)
    text = f"{str(info.dtype).removeprefix('torch.')}[{', '.join('?' if s is None else str(s) for s in info.shape)}]"
    return TensorSpec(tuple(info.shape) if known else None, info.dtype, text=text)


def _load_pt2(path: Path, options: dict[str, Any], allow_operators: Sequence[str]) -> LoadedModel:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04":
                raise InputError(
                    f"{path}: the archive is cut short: its directory, which stands at the end, is missing",
                    fix="copy it again, or write it again",
                )
        raise InputError(
            f"{path}: not a .pt2 archive (a zip file)",
            fix="write one with torch.export.save or staticrt.save",
        )
    if _is_own_archive(path):
        return _load_archive(path, {**options, "allow_operators": allow_operators})
    program = load_exported(path, allow_operators)
    module: Any = program.module()
    for part in module.modules():  # its code is fixed, and eval() refused: peers read the flag
        part.training = False
    examples = program.example_inputs
    names, specs = _export_inputs(program)
    args = None
    if examples is not None and not examples[1]:
        args = tuple(examples[0])
    return LoadedModel(path.name, "export", module, module, names, specs, len(names), args)


def _is_own_archive(path: Path) -> bool:
    """Whether staticrt.save wrote it: it then has records of its own beside torch's."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/staticrt/" in name for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: a damaged archive: {error}") from error


def _load_archive(path: Path, options: dict[str, Any]) -> LoadedModel:
    import staticrt

    loaded = staticrt.load(str(path), **options)
    parameters = loaded._parameters
    if any(kind.startswith("VAR") for _name, kind, _default in parameters):
        parameters = []  # *args: any number, no names
    names = tuple(name for name, _kind, _default in parameters)
    required = sum(not default for _name, _kind, default in parameters)
    dtypes = {
        leaf["name"]: getattr(torch, str(leaf["dtype"]).removeprefix("torch."))
        for trace in loaded._traces
        for leaf in trace.leaves
        if leaf.get("dtype")
    }
    specs = tuple(TensorSpec(None, dtypes.get(name)) for name in names)
    return LoadedModel(path.name, "archive", None, loaded, names, specs, required)


def _export_inputs(program: torch.export.ExportedProgram) -> tuple[tuple[str, ...], tuple[TensorSpec, ...]]:
    users = set(program.graph_signature.user_inputs)
    names, specs = [], []
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name not in users:
            continue
        value = node.meta.get("val")
        names.append(str(node.target))
        if isinstance(value, torch.Tensor):
            known = all(isinstance(size, int) for size in value.shape)
            specs.append(TensorSpec(tuple(map(int, value.shape)) if known else None, value.dtype))
        else:
            specs.append(TensorSpec(None))
    return tuple(names), tuple(specs)


def _load_python(text: str, init: str) -> LoadedModel:
    place, _, attribute = text.rpartition(":")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name, value in vars(module).items() if _is_model(value, module.__name__)]
            raise InputError(
                f"{place} has no {attribute!r}", fix=f"it has {', '.join(public)}" if public else None
            )
        found = getattr(found, part)
    try:
        keywords = json.loads(init)
    except json.JSONDecodeError as error:
        raise OptionError(f"--init {init!r} is not JSON: {error}") from error
    if not isinstance(keywords, dict):
        raise OptionError(f'--init {init!r}: expected a JSON object, as {{"width": 64}}')
    if isinstance(found, type):
        if not issubclass(found, torch.nn.Module):
            raise InputError(f"{text} is a class but not an nn.Module")
        found = _build(text, found, keywords)
    elif keywords:
        raise OptionError(f"--init is for classes, {text} is not a class")
    if isinstance(found, torch.nn.Module):
        found = found.eval()
        target: Callable[..., Any] = found.forward
    elif callable(found):
        target = found
    else:
        raise InputError(f"{text} is of type {type(found).__name__}, neither an nn.Module nor a function")
    names, required = _parameters(target)
    return LoadedModel(attribute, "python", found, found, names, (), required)


def _is_model(value: Any, module: str) -> bool:
    return isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == module


def _build(text: str, cls: type, keywords: dict[str, Any]) -> Any:
    try:
        inspect.signature(cls).bind(**keywords)
    except TypeError as error:
        raise OptionError(
            f"{text} cannot be built: {error}", fix="give its arguments as --init '{\"name\": value}'"
        ) from error
    try:
        return cls(**keywords)
    except Exception as error:
        raise model_error(f"building {text}", error) from error


def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], int]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return (), 0
    plain = [
        p
        for p in parameters
        if p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if len(plain) < len(list(parameters)):
        return (), 0  # *args: any number, no names
    return tuple(p.name for p in plain), sum(p.default is inspect.Parameter.empty for p in plain)


def _import_module(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InputError(
                f"there is no module {error.name!r}", fix="run where it can be imported, or give file.py:Name"
            ) from error
        raise model_error(f"importing {name}", error) from error
    except Exception as error:
        raise model_error(f"importing {name}", error) from error


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise model_error(f"importing {path}", error) from error
    return module


def model_error(doing: str, error: Exception) -> ModelError:
    """A ModelError with the first line and the place of an error in the model's code."""
    from staticrt.frontend.reasons import exception_line

    return ModelError(
        f"{doing} failed: {type(error).__name__}: {_first_line(error)}",
        at=exception_line(error) or None,
        fix="--debug shows the traceback",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    # Errors of the runtime continue with the node: "… (\n  at: …".
    return lines[0].removesuffix("(").rstrip() if lines else type(error).__name__
