"""Fake rules of operators whose weights are packed objects.

torch has no rule for them: it would run them on tensors of the sizes at hand, and so fix all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from staticrt.shapes.fake_results import new, rule

quantized = torch.ops.quantized
_check: Callable[[Any], None] = torch._check


def _rows_and_columns(packed: Any) -> tuple[int, int]:
    """The sizes of a packed weight."""
    with _disable_current_modes():
        weight = packed.unpack()
    rows, columns = (weight[0] if isinstance(weight, (tuple, list)) else weight).shape
    return int(rows), int(columns)


@rule(
    quantized.linear_dynamic.default,
    quantized.linear_relu_dynamic.default,
    quantized.linear_dynamic_fp16.default,
    quantized.linear_relu_dynamic_fp16.default,
)
def _linear(mode: Any, x: torch.Tensor, packed: Any, *rest: Any, **settings: Any) -> Any:
    if x.dim() < 2 or x.dtype != torch.float32:
        return None
    features, depth = _rows_and_columns(packed)
    _check(x.shape[-1] == depth)
    return new(mode, [*x.shape[:-1], features], x)


@rule(quantized.embedding_byte.default, quantized.embedding_4bit.default)
def _embedding(mode: Any, packed: Any, indices: torch.Tensor, *rest: Any, **settings: Any) -> Any:
    if indices.dim() != 1:
        return None
    return new(mode, [indices.shape[0], _rows_and_columns(packed)[1]], indices, dtype=torch.float32)


@rule(quantized.embedding_bag_byte.default, quantized.embedding_bag_4bit.default)
def _embedding_bag(
    mode: Any,
    packed: Any,
    indices: torch.Tensor,
    offsets: Any = None,
    scale_grad_by_freq: bool = False,
    kind: int = 0,
    pruned_weights: bool = False,
    per_sample_weights: Any = None,
    compressed_indices_mapping: Any = None,
    include_last_offset: bool = False,
) -> Any:
    if indices.dim() == 2 and offsets is None:
        bags = indices.shape[0]
    elif indices.dim() == 1 and offsets is not None and offsets.dim() == 1:
        bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    else:
        return None
    return new(mode, [bags, _rows_and_columns(packed)[1]], indices, dtype=torch.float32)
