"""Activations, their backward ops, dropout in eval mode, gated units and softmax."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "activation",
    """
    relu relu6 elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu sigmoid silu softplus
    softshrink threshold mish celu selu special_expit elu_backward gelu_backward hardshrink_backward
    hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward sigmoid_backward
    silu_backward softplus_backward softshrink_backward threshold_backward tanh_backward mish_backward
    logit_backward log_sigmoid_backward
    """,
    cost=Cost.POINTWISE,
    fusable=True,
)
# The second result of log_sigmoid_forward is scratch memory for the backward pass: empty on some builds.
register_ops(
    "activation",
    """
    prelu _prelu_kernel _prelu_kernel_backward log_sigmoid log_sigmoid_forward glu glu_backward
    """,
    cost=Cost.POINTWISE,
)
register_ops(
    "activation",
    """
    softmax _softmax _softmax_backward_data log_softmax _log_softmax _log_softmax_backward_data
    _safe_softmax _masked_softmax special_softmax special_log_softmax
    """,
    cost=Cost.REDUCTION,
)
