"""ONNX Runtime's own operators (domain com.microsoft) that exporters and its optimizer emit for transformers.

Source: ContribOperators.md of microsoft/onnxruntime; compared with its CPU kernels by tests/interop/onnx/test_contrib.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, Value, in_float
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.operators import quantize
from staticrt.interop.onnx.operators.conv import conv
from staticrt.interop.onnx.operators.linear import gemm, matmul_integer
from staticrt.interop.onnx.operators.norm import layer_norm
from staticrt.interop.onnx.registry import op

DOMAIN = "com.microsoft"


def _moved(x: Tensor, trans: int, trans_batch: int) -> Tensor:
    if trans_batch:
        x = x.permute([*range(1, x.dim() - 1), 0, x.dim() - 1])
    return x.transpose(-1, -2) if trans and x.dim() > 1 else x


@op("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    found = torch.matmul(_moved(a, transA, transBatchA), _moved(b, transB, transBatchB))
    return found if alpha == 1 else found * alpha


op("Gelu", domain=DOMAIN)(lambda x: F.gelu(x))
op("BiasGelu", domain=DOMAIN)(lambda x, bias: F.gelu(x + bias))


@op("FastGelu", domain=DOMAIN)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


op("QuickGelu", domain=DOMAIN)(lambda x, *, alpha=1.702: x * torch.sigmoid(x * alpha))


# -- normalisation -------------------------------------------------------------------------------------------------

# Older models have these in ONNX's own domain, as ONNX Runtime does.
op("LayerNormalization")(layer_norm)


@op("SimplifiedLayerNormalization")
def simplified_layer_norm(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    first = axis % x.dim()
    wide = in_float(x) if stash_type == 1 else x
    square = torch.mean(wide * wide, list(range(first, x.dim())), keepdim=True)
    inverse = torch.rsqrt(square + epsilon)
    return (wide * inverse).to(x.dtype) * scale, inverse


@op("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_norm(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    return F.layer_norm(total, [x.shape[-1]], gamma, beta, epsilon), None, None, total


@op("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_norm(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> Any:
    total = x + skip if bias is None else x + skip + bias
    found, _inverse = simplified_layer_norm(total, gamma, epsilon=epsilon)
    return found, None, None, total


@op("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_norm(
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segment_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Any:
    total = F.embedding(ids, words)
    at = positions[: ids.shape[1]] if position_ids is None else F.embedding(position_ids, positions)
    total = total + at
    if segments is not None and segment_table is not None:
        total = total + F.embedding(segments, segment_table)
    lengths = ids.new_zeros([ids.shape[0]]) if mask is None else (mask == 1).sum(1)
    found = F.layer_norm(total, [words.shape[1]], gamma, beta, epsilon)
    return found, lengths.to(torch.int32), total


# -- attention -----------------------------------------------------------------------------------------------------


def _heads(x: Tensor, count: int) -> Tensor:
    """[batch, length, width] -> [batch, heads, length, width / heads]."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _additive(mask: Tensor, batch: Any, queries: Any, keys: Any, filtered: float) -> Tensor:
    """A mask of ONNX Runtime's as what is added to scores: lengths [batch] or [2 · batch] (ends, then begins), or
    1 (seen) and 0 of [batch, keys], [batch, queries, keys] or [batch, 1, n, n]."""
    if mask.dim() == 1:
        at = torch.arange(keys)
        seen = at < mask[:batch].unsqueeze(1)
        if mask.shape[0] != batch:
            seen = seen & (at >= mask[batch : 2 * batch].unsqueeze(1))
    else:
        seen = mask > 0
    if seen.dim() == 2:
        seen = seen.unsqueeze(1).unsqueeze(1)
    elif seen.dim() == 3:
        seen = seen.unsqueeze(1)
    else:
        seen = seen[:, :, keys - queries : keys, :keys]
    return torch.where(seen, 0.0, filtered)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: int,
    scale: float,
    filtered: float,
) -> Tensor:
    """Attention of [batch, heads, length, size]; the result is [batch, queries, heads · size]."""
    queries, keys = q.shape[2], k.shape[2]
    terms = [] if mask is None else [_additive(mask, q.shape[0], queries, keys, filtered)]
    terms += [] if bias is None else [bias]
    if causal:
        late = torch.arange(keys) > torch.arange(queries).unsqueeze(1) + (keys - queries)
        terms.append(torch.where(late, filtered, 0.0))
    added = functools.reduce(torch.add, terms).to(q.dtype) if terms else None
    found = F.scaled_dot_product_attention(q, k, v, added, scale=scale or None)
    return found.transpose(1, 2).reshape(q.shape[0], queries, -1)


@op("Attention", domain=DOMAIN)
def attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_length: Tensor | None = None,
    *,
    num_heads: int,
    unidirectional: int = 0,
    qkv_hidden_sizes: Ints | None = None,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    do_rotary: int = 0,
    rotary_embedding_dim: int = 0,
    past_present_share_buffer: int = 0,
) -> Any:
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise OnnxError("Attention with rotary positions or a shared past buffer is not supported")
    sizes = list(qkv_hidden_sizes or [weights.shape[1] // 3] * 3)
    found = torch.matmul(x, weights)
    q, k, v = (
        _heads(part, num_heads)
        for part in (found if bias is None else found + bias).split_with_sizes(sizes, -1)
    )
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    result = _attend(q, k, v, mask, attention_bias, unidirectional, scale, mask_filter_value)
    return result, torch.stack([k, v])


@op("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:
    if query.dim() == 5:  # [batch, length, heads, 3, size]
        q, k, v = (part.transpose(1, 2) for part in torch.unbind(query, 3))
    else:
        if key is None:
            raise OnnxError("MultiHeadAttention without keys")
        if key.dim() == 5:  # [batch, length, heads, 2, size]
            k, v = (part.transpose(1, 2) for part in torch.unbind(key, 3))
        else:
            if value is None:
                raise OnnxError("MultiHeadAttention without values")
            width = query.shape[2]
            if bias is not None:
                query = query + bias[:width]
                key = key + bias[width : 2 * width] if key.dim() == 3 else key
                value = value + bias[2 * width :] if value.dim() == 3 else value
                bias = None
            k = key if key.dim() == 4 else _heads(key, num_heads)
            v = value if value.dim() == 4 else _heads(value, num_heads)
        q = _heads(query, num_heads)
    if bias is not None:
        raise OnnxError("MultiHeadAttention of packed inputs with a bias is not supported")
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    result = _attend(q, k, v, mask, attention_bias, unidirectional, scale, mask_filter_value)
    return result, k, v


@op("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
) -> Tensor:
    flat = x.dim() == 3
    turned = rotary_embedding_dim or 2 * cos_cache.shape[1]
    if flat:
        size = x.shape[2] // num_heads if num_heads and rotary_embedding_dim else turned
        x = x.reshape(x.shape[0], x.shape[1], -1, size).transpose(1, 2)
    if position_ids.numel() == 1 and position_ids.dim() == 1:
        position_ids = (position_ids + torch.arange(x.shape[2])).unsqueeze(0)
    cos, sin = (F.embedding(position_ids, cache).unsqueeze(1) for cache in (cos_cache, sin_cache))
    part, rest = x[..., :turned], x[..., turned:]
    if interleaved:
        even, odd = part[..., 0::2], part[..., 1::2]
        found = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    else:
        low, high = part.chunk(2, -1)
        found = torch.cat([low * cos - high * sin, low * sin + high * cos], -1)
    found = torch.cat([found, rest], -1)
    return found.transpose(1, 2).flatten(2) if flat else found


# -- fused with an activation --------------------------------------------------------------------------------------

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "": lambda x: x,
    "Relu": torch.relu,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "Clip": lambda x, low, high: torch.clamp(x, low, high),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(x * alpha + beta, 0, 1),
}


def _activated(x: Tensor, activation: str, parameters: Any) -> Tensor:
    if activation not in _ACTIVATIONS:
        raise OnnxError(f"the fused activation {activation!r} is not supported")
    return _ACTIVATIONS[activation](x, *parameters)


@op("FusedConv", domain=DOMAIN, like=conv)
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Value = (),
    **windows: Any,
) -> Tensor:
    found = conv(x, w, b, **windows)
    return _activated(found if z is None else found + z, activation, activation_params)


@op("FusedGemm", domain=DOMAIN, like=gemm)
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **product: Any,
) -> Tensor:
    given = [value for value in (activation_alpha, activation_beta) if value is not None]
    return _activated(gemm(a, b, c, **product), activation, given)


# -- quantised -----------------------------------------------------------------------------------------------------

op("QuantizeLinear", domain=DOMAIN)(quantize.quantize_linear)
op("DequantizeLinear", domain=DOMAIN)(quantize.dequantize_linear)


@op("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    found = matmul_integer(a, b, a_zero, b_zero).float() * (a_scale * b_scale)
    return found if bias is None else found + bias


@op("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    found, scale, zero = quantize.dynamic_quantize_linear(a)
    return matmul_integer_to_float(found, b, scale, b_scale, zero, b_zero, bias)
