"""Sparse tensors and lists of tensors, which the runtime leaves to the dispatcher; ops that only tests call."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op, register_ops

# They may return their argument where it is sparse already, or the values that they were given.
register_ops(
    "other",
    """
    to_sparse _to_sparse to_sparse_csr to_sparse_csc coalesce _coalesce
    """,
    may_alias=("self",),
)
register_ops(
    "other",
    """
    sparse_sampled_addmm _sparse_mm _sparse_mm_reduce_impl _sparse_sum _sparse_addmm
    """,
)
# One pointwise op on each tensor of a list. Results are fresh.
register_ops(
    "other",
    """
    _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan
    _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_clone _foreach_copy _foreach_cos
    _foreach_cosh _foreach_div _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor
    _foreach_frac _foreach_lerp _foreach_lgamma _foreach_log _foreach_log10 _foreach_log1p _foreach_log2
    _foreach_max _foreach_maximum _foreach_minimum _foreach_mul _foreach_neg _foreach_norm _foreach_pow
    _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin
    _foreach_sinh _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero
    """,
    cost=Cost.POINTWISE,
)
register_op("aten._test_functorch_fallback", family="other")
register_op("staticrt.tree_ensemble", family="other", cost=Cost.MEMORY)
register_op("aten.broadcast_shapes", family="other", cost=Cost.VIEW)
