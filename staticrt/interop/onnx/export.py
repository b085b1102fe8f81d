"""`staticrt.to_onnx`."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.export_sizes import settle_sizes
from staticrt.interop.onnx.size_conditions import KEY, write

if TYPE_CHECKING:
    import onnx


# Conditions that a size, or an expression of sizes, has a minimum. Windows and flattened tensors need them.
_LEAST = re.compile(r"\w+ >= \d+|[01] <=? .*")


def to_onnx(
    module: Any,
    args: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: bool = True,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    """Export a module, or what `staticrt.compile` made of it, as an ONNX model.

    Uses `torch.onnx.export(dynamo=True)` and checks the result with `onnx.checker`.

    Args:
        module: an `nn.Module` or a compiled one; it is exported in the mode, training or evaluation, that it is in.
        args: example arguments: a tuple, or one tensor.
        path: where to write the model; if its tensors are beyond protobuf's 2 GB, they go into a file beside it,
            `path` + ".data". None: only return it.
        kwargs: example keyword arguments.
        dynamic: leave every size that the model allows free. False: the sizes of `args` are fixed. Where the
            module's code asks for sizes (`if x.shape[0] > 4`), a warning names the conditions under which the model
            holds, and so does its metadata.
        dynamic_shapes: which sizes are free, in the form of `torch.export.export`; overrides `dynamic`.
        input_names, output_names: names in the model.
        opset: operator set to write.

    Returns:
        The model. If its tensors are in a file of their own, it refers to them.

    Raises:
        OnnxError: `onnx` or `onnxscript` is missing, the module cannot be exported, the result is invalid, or
            beyond 2 GB without a `path`.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise OnnxError(
            f"the {error.name} package is not installed", fix="pip install 'staticrt[onnx]'"
        ) from error
    from staticrt.interop.onnx.export_file import save_model

    inner = _plain(module)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise OnnxError(f"args is a tuple of example arguments, got {type(args).__name__}")
    keywords = dict(kwargs or {})
    if dynamic_shapes is None and dynamic:
        dynamic_shapes = _free(tuple(args), keywords)
    program = _export(
        inner,
        tuple(args),
        keywords,
        dynamic_shapes,
        input_names=input_names,
        output_names=output_names,
        opset_version=opset,
    )
    conditions = settle_sizes(program)
    if conditions:
        program.model.metadata_props[KEY] = write(conditions)
    _warn(type(inner).__name__, program.exported_program.graph_signature, conditions)
    return save_model(program, None if path is None else os.fspath(path))


def _export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    **options: Any,
) -> Any:
    """Export a module with torch.onnx.

    Raises:
        OnnxError: it cannot be exported.
    """
    from staticrt.interop.onnx.export_trace import trace
    from staticrt.interop.onnx.translations import translations

    options["custom_translation_table"] = translations(options["opset_version"])

    def export(what: Any, **how: Any) -> Any:
        found = torch.onnx.export(what, dynamo=True, verbose=False, **how, **options)
        assert found is not None
        return found

    def as_given() -> Any:
        return export(module, args=args, kwargs=kwargs or None, dynamic_shapes=dynamic_shapes)

    def with_own_trace() -> Any:
        with torch.no_grad():
            return export(trace(module, args, kwargs, dynamic_shapes))

    first: Exception | None = None
    for attempt in (as_given, with_own_trace):
        try:
            return attempt()
        except Exception as error:
            first = first or error
    assert first is not None
    _refuse(module, first)


def _while_tracing(error: Exception) -> bool:
    return isinstance(error, torch.onnx.errors.OnnxExporterError) and "torch.export" in str(error)[:200]


def _refuse(module: torch.nn.Module, error: Exception) -> NoReturn:
    """Raise OnnxError with the message of the first cause."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause).strip().split("\n")[0]
    fix = "with dynamic=False sizes are constants"
    if _while_tracing(error):
        fix = "data-dependent Python control flow has no ONNX form: use torch.cond, or export a part; " + fix
    elif "No ONNX function found" in text:
        fix = "the operator has no ONNX form: let the module compute it with others, or export a part"
    elif "Error when translating node return" in str(error):
        text = "it returns a number, and an ONNX model gives tensors"
        raise OnnxError(
            f"{type(module).__name__} cannot be exported: {text}", fix="return torch.tensor(number)"
        ) from error
    raise OnnxError(
        f"{type(module).__name__} cannot be exported: {type(cause).__name__}: {text}", fix=fix
    ) from error


def _warn(name: str, signature: Any, conditions: Sequence[str]) -> None:
    """Warn about inputs that the exported model does not accept, except images that are smaller than a window."""
    asked = [condition for condition in conditions if not _LEAST.fullmatch(condition)]
    if asked:
        warnings.warn(
            f"staticrt: {name} as exported holds only where {'; '.join(asked)}, as the module asked for "
            "its example's sizes. staticrt.from_onnx checks this, other runtimes do not",
            stacklevel=3,
        )
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        warnings.warn(
            f"staticrt: {name} writes {', '.join(map(repr, sorted(set(written))))}; an ONNX model keeps nothing "
            "between calls and changes no input: return the new values instead",
            stacklevel=3,
        )


def _plain(module: Any) -> torch.nn.Module:
    """The module inside a compiled one."""
    from staticrt.api.compile import CompiledFunction, CompiledModule

    if isinstance(module, (CompiledModule, CompiledFunction)):
        module = module.__inspectable__().function
    if not isinstance(module, torch.nn.Module):
        raise OnnxError(
            f"to_onnx takes an nn.Module, got {type(module).__name__}", fix="wrap functions in a module"
        )
    return module


def _free(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dynamic shapes in which every dimension of every tensor is free."""
    from torch.utils import _pytree as pytree

    def dims(value: Any) -> Any:
        return (
            dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)
            if isinstance(value, torch.Tensor)
            else None
        )

    free = pytree.tree_map(dims, (args, kwargs))
    return (*free[0], *free[1].values()) if not kwargs else {"args": free[0], **free[1]}
