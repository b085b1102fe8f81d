"""ONNX translations of operators that torch's exporter lacks, or has only for some arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def translations(opset: int) -> dict[Any, Callable[..., Any]]:
    """`custom_translation_table` of `torch.onnx.export` for an operator set."""
    from onnxscript import opset18

    from staticrt.interop.onnx.export_attention import attention

    def extreme(reduce: Any) -> Callable[..., Any]:
        def translate(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
            if dim is None or (isinstance(dim, (list, tuple)) and not dim):
                return reduce(self, keepdims=int(keepdim))
            axes = opset18.Constant(value_ints=[dim] if isinstance(dim, int) else list(dim))
            return reduce(self, axes, keepdims=int(keepdim))

        return translate

    aten = torch.ops.aten
    return {
        aten.amax.default: extreme(opset18.ReduceMax),
        aten.amin.default: extreme(opset18.ReduceMin),
        aten.scaled_dot_product_attention.default: attention(opset),
    }
