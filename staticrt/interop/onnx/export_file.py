"""Writes the models of `to_onnx`."""

from __future__ import annotations

from typing import Any

import onnx

from staticrt.archive.files import replace_file
from staticrt.errors import OnnxError

# A protobuf message has at most 2 GiB; an eighth of a gibibyte is reserved for everything except tensors.
INLINE_LIMIT_BYTES = 2**31 - 2**27


def save_model(program: Any, path: str | None) -> onnx.ModelProto:
    """Check a `torch.onnx.ONNXProgram`, write it, and return it as a message.

    A model that fits one message is one file, which is written whole or not at all. The tensors of a larger one
    are in `path` + ".data", and the message refers to that file.

    Raises:
        OnnxError: the model is invalid, the file cannot be written, or a large model has no `path`.
    """
    tensors = [value.const_value for value in program.model.graph.initializers.values()]
    size_bytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if size_bytes > INLINE_LIMIT_BYTES:
        return _large(program, path, size_bytes)
    model: onnx.ModelProto = program.model_proto
    _check(model)
    if path is not None:
        try:
            replace_file(path, lambda file: file.write(model.SerializeToString()))
        except OSError as error:
            raise _unwritten(path, error) from error
    return model


def _large(program: Any, path: str | None, size_bytes: int) -> onnx.ModelProto:
    if path is None:
        raise OnnxError(
            f"the model has {size_bytes / 2**30:.2f} GiB of tensors, and one message holds less than 2",
            fix="pass path=: the tensors are then written into a file beside it",
        )
    try:
        program.save(path, external_data=True)
    except OSError as error:
        raise _unwritten(path, error) from error
    _check(path)
    return onnx.load(path, load_external_data=False)


def _unwritten(path: str, error: OSError) -> OnnxError:
    return OnnxError(f"cannot write {path!r}: {error.strerror or error}", fix="check the path")


def _check(model: onnx.ModelProto | str) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise OnnxError(
            f"the exported model is invalid: {str(error).strip()}", fix="please report it"
        ) from error
