"""`staticrt.to_onnx`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from staticrt.errors import OnnxError

if TYPE_CHECKING:
    import onnx


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
        module: an `nn.Module` or a compiled one; it is exported in evaluation mode as it is set now.
        args: example arguments: a tuple, or one tensor.
        path: where to write the model; tensors beyond protobuf's 2 GB go into a file beside it. None: only return it.
        kwargs: example keyword arguments.
        dynamic: leave every size that the model allows free. False: the sizes of `args` are fixed.
        dynamic_shapes: which sizes are free, in the form of `torch.export.export`; overrides `dynamic`.
        input_names, output_names: names in the model.
        opset: operator set to write.

    Returns:
        The model.

    Raises:
        OnnxError: `onnx` or `onnxscript` is missing, the module cannot be exported, or the result is invalid.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise OnnxError(
            f"the {error.name} package is not installed", fix="pip install 'staticrt[onnx]'"
        ) from error
    inner = _plain(module)
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise OnnxError(f"args is a tuple of example arguments, got {type(args).__name__}")
    keywords = dict(kwargs or {})
    if dynamic_shapes is None and dynamic:
        dynamic_shapes = _free(tuple(args), keywords)
    try:
        program = torch.onnx.export(
            inner,
            tuple(args),
            kwargs=keywords or None,
            dynamo=True,
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset,
            verbose=False,
        )
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        text = str(cause).strip().split("\n")[0]
        raise OnnxError(
            f"{type(inner).__name__} cannot be exported: {type(cause).__name__}: {text}",
            fix="data-dependent Python control flow has no ONNX form: use torch.cond, or export a part; "
            "with dynamic=False sizes are constants",
        ) from error
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise OnnxError(
            f"the exported model is invalid: {str(error).strip()}", fix="please report it"
        ) from error
    if path is not None:
        _write(model, os.fspath(path))
    return model


def _plain(module: Any) -> torch.nn.Module:
    """The module inside a compiled one."""
    from staticrt.compiler import CompiledFunction, CompiledModule

    if isinstance(module, (CompiledModule, CompiledFunction)):
        module = module._engine.function
    if not isinstance(module, torch.nn.Module):
        raise OnnxError(
            f"to_onnx takes an nn.Module, got {type(module).__name__}", fix="wrap functions in a module"
        )
    return module


def _free(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every dimension of every tensor left free."""
    from torch.utils import _pytree as pytree

    def dims(value: Any) -> Any:
        return (
            dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)
            if isinstance(value, torch.Tensor)
            else None
        )

    free = pytree.tree_map(dims, (args, kwargs))
    return (*free[0], *free[1].values()) if not kwargs else {"args": free[0], **free[1]}


def _write(model: Any, path: str) -> None:
    import onnx

    large = model.ByteSize() > 2**31 - 1
    try:
        if large:
            onnx.save_model(
                model,
                path,
                save_as_external_data=True,
                location=os.path.basename(path) + ".data",
                size_threshold=1024,
            )
        else:
            onnx.save_model(model, path)
    except OSError as error:
        raise OnnxError(f"cannot write {path!r}: {error.strerror}", fix="check the path") from error
