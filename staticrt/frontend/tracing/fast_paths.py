"""The fused operators of torch.nn's transformer layers, written out.

Eager uses them in evaluation. They differ slightly from the layers' Python code: a row whose keys are all masked is NaN, a
mask of numbers masks where it is not 0, and results are contiguous
(aten/src/ATen/native/transformers/attention.cpp, transformer.cpp). What is written out here is recognised by passes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing import autocast

aten = torch.ops.aten


def attention(
    tracer: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`aten._native_multi_head_attention`: queries [B, T, D], keys and values [B, S, D]."""
    _refuse_autocast()
    size = embed_dim // num_head
    q, k, v = (
        part.view(part.shape[0], part.shape[1], num_head, size).transpose(1, 2)
        for part in _projections(query, key, value, embed_dim, qkv_weight, qkv_bias)
    )
    scores = torch.matmul(q, k.transpose(-2, -1)) * (1 / math.sqrt(size))
    if mask is not None:
        scores = scores.masked_fill(_hidden(mask, mask_type), -math.inf)
    weights = scores.softmax(-1)
    joined = torch.matmul(weights, v).transpose(1, 2).reshape(query.shape[0], query.shape[1], embed_dim)
    result = aten.linear.default(joined, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, weights.sum(1) / num_head if average_attn_weights else weights


def _refuse_autocast() -> None:
    if autocast.is_on():
        raise CannotTrace(
            "a transformer layer takes a fused path under autocast, whose dtypes are its own; "
            "torch.backends.mha.set_fastpath_enabled(False) compiles",
            even_in_parts=True,
        )


def _projections(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dim: int, weight: Any, bias: Any
) -> tuple[torch.Tensor, ...]:
    if query is key and key is value:
        return tuple(aten.linear.default(query, weight, bias).chunk(3, -1))
    if key is value:
        q = aten.linear.default(query, weight[:dim], bias[:dim])
        return (q, *aten.linear.default(key, weight[dim:], bias[dim:]).chunk(2, -1))
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(aten.linear.default(x, w, b) for x, w, b in parts)


def _hidden(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """The mask of keys, to be broadcast over scores [B, heads, T, S]."""
    hidden = mask if mask.dtype == torch.bool else mask != 0
    if mask_type == 1:  # [B, S]
        return hidden[:, None, None, :]
    return hidden  # [T, S], or of full size


def encoder_layer(
    tracer: Any,
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """`aten._transformer_encoder_layer_fwd`: src [B, T, D]."""
    _refuse_autocast()

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    x = attention(tracer, x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)[0] + src
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    before = x
    if norm_first:
        x = norm(x, norm_weight_2, norm_bias_2)
    x = aten.linear.default(x, ffn_weight_1, ffn_bias_1)
    x = torch.nn.functional.gelu(x) if use_gelu else x.relu()
    x = aten.linear.default(x, ffn_weight_2, ffn_bias_2) + before
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)
