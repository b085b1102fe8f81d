"""Normalisation layers and weight normalisation."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, Cost
from staticrt.ops.out_rules import SameAs
from staticrt.ops.registry import register_op

ONE_RESULT = ["layer_norm", "group_norm", "instance_norm", "batch_norm", "rms_norm"]
SEVERAL_RESULTS = [
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_no_update",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_batch_norm_impl_index",
    "batch_norm_stats",
    "batch_norm_elemt",
    "batch_norm_update_stats",
    "batch_norm_gather_stats",
    "_fused_rms_norm",
    "batch_norm_gather_stats_with_counts",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "native_batch_norm_backward",
    "batch_norm_backward",
    "_batch_norm_impl_index_backward",
    "_fused_rms_norm_backward",
    "_weight_norm_interface_backward",
]

# These write their running statistics in training, although their schema does not say so.
WRITING = {
    "batch_norm": "training",
    "instance_norm": "use_input_stats",
    "native_batch_norm": "training",
    "_batch_norm_impl_index": "training",
    "batch_norm_gather_stats": None,
    "batch_norm_gather_stats_with_counts": None,
    "batch_norm_update_stats": None,
}

for _name in ONE_RESULT + SEVERAL_RESULTS:
    _switch = WRITING.get(_name)
    register_op(
        f"aten.{_name}",
        family="norm",
        out=SameAs("input") if _name in ONE_RESULT and _name != "rms_norm" else None,
        cost=Cost.REDUCTION,
        tolerance=ACCUMULATED,
        writes=("running_mean", "running_var") if _name in WRITING else (),
        idle_when={_switch: False} if _switch else {},
    )
