"""Sparse tensors and lists of tensors, which the runtime leaves to the dispatcher; ops that only tests call."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, Cost
from staticrt.ops.registry import register_op

# They may give back a tensor that is sparse already, or the values they were given.
SPARSE_MAYBE = ["to_sparse", "_to_sparse", "to_sparse_csr", "to_sparse_csc", "coalesce", "_coalesce"]
SPARSE = ["sparse_sampled_addmm", "_sparse_mm", "_sparse_mm_reduce_impl", "_sparse_sum", "_sparse_addmm"]
# One pointwise op on each tensor of a list. Results are fresh.
FOREACH = [
    "abs",
    "acos",
    "add",
    "addcdiv",
    "addcmul",
    "asin",
    "atan",
    "ceil",
    "clamp_max",
    "clamp_min",
    "clone",
    "copy",
    "cos",
    "cosh",
    "div",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lerp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "max",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "norm",
    "pow",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "trunc",
    "zero",
]

for _name in SPARSE_MAYBE:
    register_op(f"aten.{_name}", family="other", may_alias=("self",), cost=Cost.OTHER)
for _name in SPARSE:
    register_op(f"aten.{_name}", family="other", cost=Cost.OTHER, tolerance=ACCUMULATED)
for _name in FOREACH:
    register_op(f"aten._foreach_{_name}", family="other", cost=Cost.POINTWISE)
register_op("aten._test_functorch_fallback", family="other", cost=Cost.OTHER)
register_op("staticrt.tree_ensemble", family="other", cost=Cost.MEMORY)
register_op("aten.broadcast_shapes", family="other", cost=Cost.VIEW)
