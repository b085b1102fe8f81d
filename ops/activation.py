"""Activations, their backward ops, dropout in eval mode, gated units and softmax."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, Cost
from staticrt.ops.out_rules import SameAs
from staticrt.ops.registry import register_op

ELEMENTWISE = [
    "relu",
    "relu6",
    "elu",
    "gelu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "threshold",
    "mish",
    "celu",
    "selu",
    "special_expit",
]
BACKWARD = [
    "elu_backward",
    "gelu_backward",
    "hardshrink_backward",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "sigmoid_backward",
    "silu_backward",
    "softplus_backward",
    "softshrink_backward",
    "threshold_backward",
    "tanh_backward",
    "mish_backward",
    "logit_backward",
    "log_sigmoid_backward",
]

for _name in ELEMENTWISE:
    register_op(
        f"aten.{_name}",
        family="activation",
        out=SameAs("self", dtype="float" if _name in ("sigmoid", "special_expit") else "same"),
        can_reuse=("self",),
        cost=Cost.POINTWISE,
        fusable=True,
    )
for _name in BACKWARD:
    register_op(
        f"aten.{_name}",
        family="activation",
        can_reuse=("grad_output", "self", "output"),
        cost=Cost.POINTWISE,
        fusable=True,
    )
register_op("aten.prelu", family="activation", out=SameAs("self"), cost=Cost.POINTWISE)
register_op("aten._prelu_kernel", family="activation", out=SameAs("self"), cost=Cost.POINTWISE)
register_op("aten._prelu_kernel_backward", family="activation", cost=Cost.POINTWISE)
register_op("aten.log_sigmoid", family="activation", out=SameAs("self"), cost=Cost.POINTWISE)
# The second result is scratch memory for the backward pass: empty on some builds.
register_op("aten.log_sigmoid_forward", family="activation", cost=Cost.POINTWISE)
register_op("aten.glu", family="activation", cost=Cost.POINTWISE)
register_op("aten.glu_backward", family="activation", cost=Cost.POINTWISE)

for _name in ("softmax", "log_softmax"):
    register_op(
        f"aten.{_name}",
        family="activation",
        out=SameAs("self", dtype_arg="dtype"),
        cost=Cost.REDUCTION,
        tolerance=ACCUMULATED,
    )
    register_op(f"aten._{_name}", family="activation", cost=Cost.REDUCTION, tolerance=ACCUMULATED)
    register_op(
        f"aten._{_name}_backward_data", family="activation", cost=Cost.REDUCTION, tolerance=ACCUMULATED
    )
register_op("aten._safe_softmax", family="activation", cost=Cost.REDUCTION, tolerance=ACCUMULATED)
register_op("aten._masked_softmax", family="activation", cost=Cost.REDUCTION, tolerance=ACCUMULATED)
for _name in ("special_softmax", "special_log_softmax"):
    register_op(f"aten.{_name}", family="activation", cost=Cost.REDUCTION, tolerance=ACCUMULATED)
