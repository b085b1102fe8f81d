"""Normalisation layers and weight normalisation."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "norm",
    """
    layer_norm group_norm rms_norm native_layer_norm native_group_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_no_update
    _batch_norm_with_update _batch_norm_with_update_functional batch_norm_stats batch_norm_elemt
    _fused_rms_norm native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
    batch_norm_backward _batch_norm_impl_index_backward _fused_rms_norm_backward
    _weight_norm_interface_backward
    """,
    cost=Cost.REDUCTION,
)
# These write their running statistics in training, although their schema does not say so.
WRITING = {
    "batch_norm native_batch_norm _batch_norm_impl_index": {"training": False},
    "instance_norm": {"use_input_stats": False},
    "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats": {},
}
for _names, _idle_when in WRITING.items():
    register_ops(
        "norm", _names, writes=("running_mean", "running_var"), idle_when=_idle_when, cost=Cost.REDUCTION
    )
