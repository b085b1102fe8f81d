"""ONNX Runtime's operators (domain com.microsoft) of quantised language models: weights in blocks of a few bits, and
attention with a cache whose filled length is data.

Source: ContribOperators.md of microsoft/onnxruntime; compared with its CPU kernels by tests/interop/onnx/test_contrib_llm.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Numbers, Tensor
from staticrt.interop.onnx.operators.microsoft import DOMAIN, rotary_embedding
from staticrt.interop.onnx.registry import op


def unpacked(bytes_: Tensor, bits: int, count: int) -> Tensor:
    """Unsigned numbers of `bits` bits, lowest first in each byte: [..., bytes] -> uint8 [..., count]."""
    if bits == 8:
        return bytes_[..., :count]
    if bits not in (2, 4):
        raise OnnxError(f"weights of {bits} bits are not supported", fix="quantise to 2, 4 or 8 bits")
    parts = [(bytes_ >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)[..., :count]


def dequantized_blocks(q: Tensor, scales: Tensor, zero: Tensor | None, middle: int, block: int) -> Tensor:
    """(q - zero) * scale, one scale and zero point for `block` numbers of the last dimension; the last block may
    have fewer."""
    count = q.shape[-1]
    scale = scales.repeat_interleave(block, -1)[..., :count]
    if zero is None:
        return (q.to(scale.dtype) - middle) * scale
    return (q.to(scale.dtype) - zero.to(scale.dtype).repeat_interleave(block, -1)[..., :count]) * scale


@op("MatMulNBits", domain=DOMAIN)
def matmul_n_bits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Tensor:
    """a [..., K] times the transpose of weights [N, K]. Weights become floats once, not in every call."""
    if weight_prepacked:
        raise OnnxError("MatMulNBits with weights packed for another device is not supported")
    blocks = -(-K // block_size)
    q = unpacked(b.reshape(N, -1), bits, K)
    zero = zero_points
    if zero is not None:
        packed = zero.dtype is torch.uint8
        zero = unpacked(zero.reshape(N, -1), bits, blocks) if packed else zero.reshape(N, blocks)
    scales = scales.reshape(N, blocks)
    if g_idx is not None:  # the group of each column
        at = g_idx.to(torch.int64)
        scales = scales.index_select(1, at)
        zero = None if zero is None else zero.index_select(1, at)
        block_size = 1
    weight = dequantized_blocks(q, scales, zero, 1 << (bits - 1), block_size).to(a.dtype)
    return F.linear(a, weight, bias)


@op("GatherBlockQuantized", domain=DOMAIN)
def gather_block_quantized(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    block_size: int = 128,
    bits: int = 4,
) -> Tensor:
    """Rows of a quantised table. Data of uint8 hold `bits` bits each, 4-bit types one number each."""
    if gather_axis % data.dim() != 0 or quantize_axis % data.dim() != data.dim() - 1:
        raise OnnxError(
            "GatherBlockQuantized gathers along the first axis of tables with blocks along the last",
            fix="write the operator as Gather after DequantizeLinear",
        )
    flat = indices.reshape(-1).to(torch.int64)
    flat = torch.where(flat < 0, flat + data.shape[0], flat)
    rows, scale = data.index_select(0, flat), scales.index_select(0, flat)
    zero = None if zero_points is None else zero_points.index_select(0, flat)
    middle = 0
    if data.dtype is torch.uint8:
        middle = 1 << (bits - 1)
        rows = unpacked(rows, bits, rows.shape[-1] * (8 // bits))
        zero = None if zero is None else unpacked(zero, bits, scale.shape[-1])
    found = dequantized_blocks(rows, scale, zero, middle, block_size)
    return found.reshape([*indices.shape, *found.shape[1:]])


def _filled(past: Tensor | None, new: Tensor, at: Tensor, total: Any) -> Tensor:
    """The cache with new rows written from row `at` of each batch on; [batch, heads, length, size]."""
    if past is None:
        return new
    length, more = past.shape[2], total - past.shape[2]
    if more > 0:
        past = F.pad(past, (0, 0, 0, more))
    rows = at.reshape(-1, 1, 1, 1) + torch.arange(new.shape[2]).reshape(1, 1, -1, 1)
    rows = torch.clamp(rows, max=length + more - 1 if more > 0 else length - 1)
    return past.scatter(2, rows.expand(new.shape), new)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, scale: float, softcap: float,
    sink: Tensor | None,
) -> Tensor:  # fmt: skip
    """softmax(masked scores) v. `softcap` bounds the scores, and each head may have one more score in the softmax's sum."""
    if not softcap and sink is None:
        mask = seen if bias is None else torch.where(seen, bias, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = torch.where(seen, scores if bias is None else scores + bias, -torch.inf)
    if sink is not None:
        column = sink.to(scores.dtype).reshape(1, -1, 1, 1).expand([*scores.shape[:-1], 1])
        return torch.matmul(torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1], v)
    return torch.matmul(torch.softmax(scores, -1), v)


@op("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Numbers,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    softcap: float = 0.0,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    smooth_softmax: int = 0,
    qk_output: int = 0,
    k_quant_type: str = "NONE",
    v_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    qk_norm_epsilon: float = 1e-6,
) -> Any:
    """Causal attention of grouped heads; rows `seqlens_k + 1 - new` on of the cache get the new keys and values."""
    if qk_output or k_quant_type != "NONE" or v_quant_type != "NONE":
        raise OnnxError("GroupQueryAttention with scores as an output or a quantised cache is not supported")
    batch, length = query.shape[0], query.shape[1]
    if key is None or value is None:  # packed: queries, keys and values of all heads
        size = query.shape[2] // (num_heads + 2 * kv_num_heads)
        widths = [num_heads * size, kv_num_heads * size, kv_num_heads * size]
        query, key, value = query.split_with_sizes(widths, -1)
    size = query.shape[2] // num_heads
    q = query.reshape(batch, length, num_heads, size).transpose(1, 2)
    k = key.reshape(batch, length, kv_num_heads, size).transpose(1, 2)
    v = value.reshape(batch, length, kv_num_heads, size).transpose(1, 2)
    total = total_sequence_length.item()
    filled = seqlens_k.reshape(-1).to(torch.int64) + 1
    first = length == total  # a prompt: the cache is empty
    start = torch.zeros_like(filled) if first else filled - length
    steps = start.unsqueeze(1) + torch.arange(length)  # [batch, length]: where each new row lies
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise OnnxError("GroupQueryAttention with rotary positions needs cos_cache and sin_cache")
        at = torch.clamp(steps, 0, cos_cache.shape[0] - 1) if position_ids is None else position_ids
        q, k = (rotary_embedding(x, at, cos_cache, sin_cache, interleaved=rotary_interleaved) for x in (q, k))
    present_k, present_v = _filled(past_key, k, start, total), _filled(past_value, v, start, total)
    columns = torch.arange(present_k.shape[2])
    seen = columns <= steps.unsqueeze(-1)
    if local_window_size >= 0:
        seen = seen & (columns > steps.unsqueeze(-1) - local_window_size)  # the row's own column included
    groups = num_heads // kv_num_heads
    keys, values = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (present_k, present_v))
    bias = attention_bias
    if bias is not None and bias.shape[-1] != keys.shape[2]:
        bias = F.pad(bias, (0, keys.shape[2] - bias.shape[-1]))
    sink = head_sink if head_sink is not None else torch.zeros(num_heads) if smooth_softmax > 0 else None
    found = _attention(q, keys, values, seen.unsqueeze(1), bias, scale or size**-0.5, softcap, sink)
    return found.transpose(1, 2).reshape(batch, length, -1), present_k, present_v
