"""Reductions, cumulative sums, order statistics, sorting and counting."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, BITWISE, Cost, Tolerance
from staticrt.ops.out_rules import OutRule, Reduced, SameAs
from staticrt.ops.registry import register_op

# Sums round by the order of their terms; what picks or counts elements is exact.
SUMS = [
    "logsumexp",
    "special_logsumexp",
    "nansum",
    "nanmean",
    "std",
    "var",
    "norm",
    "nuclear_norm",
    "frobenius_norm",
    "linalg_vector_norm",
    "linalg__powsum",
    "linalg_norm",
    "linalg_matrix_norm",
    "renorm",
    "dist",
    "std_mean",
    "var_mean",
    "native_norm",
    "norm_except_dim",
    "_weight_norm",
    "_weight_norm_interface",
    "trace",
    "trapezoid",
    "trapz",
    "cumulative_trapezoid",
    "cosine_similarity",
    "pairwise_distance",
    "pdist",
    "_pdist_forward",
    "cdist",
    "_cdist_forward",
    "_euclidean_dist",
    "corrcoef",
    "cov",
]
PICKS = [
    "aminmax",
    "_aminmax",
    "count_nonzero",
    "cummax",
    "cummin",
    "_cummax_helper",
    "_cummin_helper",
    "kthvalue",
    "mode",
    "median",
    "nanmedian",
    "quantile",
    "nanquantile",
    "sort",
    "msort",
    "argsort",
    "topk",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "_unique",
    "_unique2",
    "histc",
    "bincount",
    "histogram",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    "diff",
    "gradient",
    "searchsorted",
    "bucketize",
    "isin",
    "combinations",
    "hash_tensor",
    "segment_reduce",
    "_is_all_true",
    "_is_any_true",
    "is_nonzero",
]
SCANS = ["cumsum", "cumprod", "logcumsumexp", "_logcumsumexp"]


def _reduction(name: str, out: OutRule | None = None, tolerance: Tolerance = BITWISE) -> None:
    register_op(f"aten.{name}", family="reduction", out=out, cost=Cost.REDUCTION, tolerance=tolerance)


for _name in SUMS:
    _reduction(_name, None, ACCUMULATED)
for _name in PICKS:
    _reduction(_name)
for _name in SCANS:
    _reduction(_name, SameAs("self", dtype_arg="dtype") if _name == "cumsum" else None, ACCUMULATED)
for _name in ("sum", "prod"):
    _reduction(_name, Reduced(dtype="sum", dtype_arg="dtype"), ACCUMULATED)
_reduction("mean", Reduced(dtype_arg="dtype"), ACCUMULATED)
for _name in ("amax", "amin"):
    _reduction(_name, Reduced())
_reduction("argmax")
_reduction("argmin")
for _name in ("any", "all"):
    _reduction(_name)
# Three overloads, three ops: of all elements, along a dim (two results), elementwise of two tensors.
for _name in ("max", "min"):
    _reduction(_name)
    register_op(
        f"aten.{_name}.other",
        family="reduction",
        can_reuse=("self", "other"),
        cost=Cost.POINTWISE,
        fusable=True,
    )
# Returns its argument where there is nothing to sum.
register_op(
    "aten.sum_to_size", family="reduction", may_alias=("self",), cost=Cost.REDUCTION, tolerance=ACCUMULATED
)
register_op("aten._grad_sum_to_size", family="reduction", may_alias=("self",), cost=Cost.REDUCTION)
# Its second results are the bin edges, which it returns as they were given.
register_op("aten.histogramdd", family="reduction", may_alias=("bins",), cost=Cost.REDUCTION)
