"""Scaled dot-product attention and recurrent layers: composite ops that the runtime keeps whole."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

# Attention is random only where it drops out.
register_ops(
    "attention",
    """
    scaled_dot_product_attention _scaled_dot_product_attention_math
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward
    """,
    idle_when={"dropout_p": 0.0},
    cost=Cost.GEMM,
)
register_ops(
    "attention",
    """
    lstm gru rnn_tanh rnn_relu
    """,
    idle_when={"train": False, "dropout": 0.0},
    cost=Cost.GEMM,
)
register_ops(
    "attention",
    """
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_efficient_attention_backward _native_multi_head_attention
    _transformer_encoder_layer_fwd _transform_bias_rescale_qkv _fused_sdp_choice lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer
    """,
    cost=Cost.GEMM,
)
register_ops("attention", "recurrent_steps recurrent_steps_backward", namespace="staticrt", cost=Cost.GEMM)
