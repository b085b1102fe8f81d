"""Element types, and tensors of model files as torch tensors."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto

from staticrt.errors import OnnxError

# ONNX element type -> torch dtype.
DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.UINT8: torch.uint8,
    TensorProto.INT8: torch.int8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.BOOL: torch.bool,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.COMPLEX64: torch.complex64,
    TensorProto.COMPLEX128: torch.complex128,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
}
# Weights of fewer bits are stored as one value per byte. Only operators that dequantise or move elements accept them.
SMALL: dict[int, torch.dtype] = {
    TensorProto.INT4: torch.int8,
    TensorProto.UINT4: torch.uint8,
    TensorProto.INT2: torch.int8,
    TensorProto.UINT2: torch.uint8,
}
# numpy types that torch.from_numpy does not know -> a numpy type of the same size, and the torch dtype
_BITS: dict[str, tuple[type, torch.dtype]] = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
}


def type_name(element: int) -> str:
    """ "FLOAT" for 1."""
    try:
        return str(TensorProto.DataType.Name(element))
    except ValueError:
        return f"element type {element}"


def dtype_of(element: int, at: object = None) -> torch.dtype:
    """The torch dtype of an ONNX element type.

    Raises:
        OnnxError: there is none (strings; 4-bit and smaller types).
    """
    found = DTYPES.get(element)
    if found is None:
        raise OnnxError(
            f"element type {type_name(element)} is not supported",
            at=at,
            fix="convert the model's tensors of this type, or run this part of the model elsewhere",
        )
    return found


def from_array(array: Any) -> torch.Tensor:
    """A numpy array as a tensor of its own: bfloat16 and float8 arrays (ml_dtypes) included.

    Raises:
        OnnxError: an array of strings, objects or another type torch has not.
    """
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    bits = _BITS.get(array.dtype.name)
    if bits is not None:
        return torch.from_numpy(array.view(bits[0]).copy()).view(bits[1])
    try:
        return torch.from_numpy(array.copy())
    except TypeError:
        raise OnnxError(
            f"no tensor holds numpy's {array.dtype}", fix="only numbers and booleans are supported"
        ) from None


def to_tensor(proto: TensorProto, base_dir: str, at: object = None) -> torch.Tensor:
    """A tensor of a model file. External data is read from `base_dir`.

    Raises:
        OnnxError: an unsupported type, data that do not fit the shape, or a location outside of `base_dir`.
    """
    small = SMALL.get(proto.data_type)
    if small is None:
        dtype_of(proto.data_type, at)
    if any(dim < 0 for dim in proto.dims):
        raise OnnxError(f"tensor {proto.name!r} has a negative dimension: {list(proto.dims)}", at=at)
    try:
        if proto.data_location == TensorProto.EXTERNAL:
            proto = _with_external(proto, base_dir)
        array = onnx.numpy_helper.to_array(proto)
    except OnnxError:
        raise
    except Exception as error:
        raise OnnxError(
            f"tensor {proto.name!r} ({type_name(proto.data_type)}{list(proto.dims)}) cannot be read: {error}",
            at=at,
            fix="the file is damaged; export it again",
        ) from error
    return from_array(array if small is None else array.astype(np.int8).astype(str(small).split(".")[1]))


def _with_external(proto: TensorProto, base_dir: str) -> TensorProto:
    """A copy of the tensor with its data inside."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    root = os.path.realpath(base_dir or ".")
    path = os.path.realpath(os.path.join(root, location))
    fix = "external data must lie beside the model file"
    if not base_dir:
        raise OnnxError(f"tensor {proto.name!r} has external data", fix="give from_onnx the file's path")
    if not location or os.path.isabs(location) or os.path.commonpath([root, path]) != root:
        raise OnnxError(
            f"tensor {proto.name!r} lies outside of the model's folder: {location!r}", at=base_dir, fix=fix
        )
    if not os.path.isfile(path):
        raise OnnxError(f"tensor {proto.name!r}: there is no file {location!r}", at=base_dir, fix=fix)
    offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
    available = os.path.getsize(path) - offset
    if length < 0:  # what the shape asks for, or all the rest where elements are smaller than a byte
        element = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type).itemsize
        length = available if proto.data_type in SMALL else math.prod(proto.dims) * element
    if offset < 0 or available < 0 or length > available:
        raise OnnxError(
            f"tensor {proto.name!r} needs {length} bytes at {offset} of {location!r}, which has "
            f"{os.path.getsize(path)}",
            at=base_dir,
            fix="the file is truncated; copy it again",
        )
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(length)
    copy = TensorProto()
    copy.CopyFrom(proto)
    copy.ClearField("external_data")
    copy.data_location = TensorProto.DEFAULT
    copy.raw_data = data
    return copy
