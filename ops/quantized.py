"""Quantised linear, embedding bag and fake quantisation."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "quantized",
    """
    linear linear_dynamic linear_dynamic_fp16 linear_relu linear_relu_dynamic linear_relu_dynamic_fp16
    linear_with_input_q_dq_qweight_dq_output_fp32
    """,
    namespace="quantized",
    cost=Cost.GEMM,
)
register_ops(
    "quantized",
    """
    embedding_bag_4bit_rowwise_offsets embedding_bag_byte_rowwise_offsets embedding_bag_byte_prepack
    embedding_bag_byte_unpack embedding_bag_byte embedding_bag_4bit
    """,
    namespace="quantized",
    cost=Cost.MEMORY,
)
register_ops(
    "quantized",
    """
    quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic dequantize
    fake_quantize_per_tensor_affine fake_quantize_per_channel_affine
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
    _choose_qparams_per_tensor choose_qparams_optimized int_repr q_scale q_zero_point
    """,
    may_alias=("self", "tensors"),
    cost=Cost.POINTWISE,
)
