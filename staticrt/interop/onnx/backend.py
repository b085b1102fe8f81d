"""Implements ONNX's backend interface, `prepare(model).run(inputs)`, which `onnx.backend.test` uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from onnx.backend.base import Backend, BackendRep

from staticrt.interop.onnx.load import from_onnx
from staticrt.interop.onnx.module import OnnxModel
from staticrt.interop.onnx.types import to_tensor


class StaticBackendRep(BackendRep):
    """A prepared model.

    Args:
        model: called by `run`.
    """

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        """Outputs, tensors as numpy arrays, for inputs in the model's order."""
        given = [_given(v) if isinstance(v, onnx.TensorProto) else v for v in inputs]
        with torch.no_grad():
            found = self.model(*given)
        outputs = found if len(self.model.output_names) > 1 else (found,)
        return tuple(to_numpy(value) for value in outputs)


class StaticBackend(Backend):
    """The static runtime on the CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> StaticBackendRep:
        """Compile a model; options are those of `staticrt.compile`."""
        return StaticBackendRep(from_onnx(model, **options))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any) -> Any:
        """Prepare and run once."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The CPU only."""
        return device.upper().startswith("CPU")


def _given(value: onnx.TensorProto) -> Any:
    return (
        onnx.numpy_helper.to_array(value)
        if value.data_type == onnx.TensorProto.STRING
        else to_tensor(value, "")
    )


def to_numpy(value: Any) -> Any:
    """Tensors as numpy arrays, bfloat16 and float8 as those of ml_dtypes."""
    if isinstance(value, (list, tuple)):
        return [to_numpy(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    special = {
        torch.bfloat16: (torch.int16, "bfloat16"),
        torch.float8_e4m3fn: (torch.uint8, "float8_e4m3fn"),
        torch.float8_e4m3fnuz: (torch.uint8, "float8_e4m3fnuz"),
        torch.float8_e5m2: (torch.uint8, "float8_e5m2"),
        torch.float8_e5m2fnuz: (torch.uint8, "float8_e5m2fnuz"),
    }.get(value.dtype)
    if special is None:
        return value.numpy()
    import ml_dtypes

    return value.contiguous().view(special[0]).numpy().view(getattr(ml_dtypes, special[1]))


prepare = StaticBackend.prepare
run_model = StaticBackend.run_model
supports_device = StaticBackend.supports_device
