"""Reductions, cumulative sums, order statistics, sorting and counting."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op, register_ops

register_ops(
    "reduction",
    """
    sum prod mean logsumexp special_logsumexp nansum nanmean std var norm nuclear_norm frobenius_norm
    linalg_vector_norm linalg__powsum linalg_norm linalg_matrix_norm renorm dist std_mean var_mean
    native_norm norm_except_dim _weight_norm _weight_norm_interface trace trapezoid trapz
    cumulative_trapezoid cosine_similarity pairwise_distance pdist _pdist_forward cdist _cdist_forward
    _euclidean_dist corrcoef cov cumsum cumprod logcumsumexp _logcumsumexp
    """,
    cost=Cost.REDUCTION,
)
register_ops(
    "reduction",
    """
    amax amin argmax argmin any all aminmax _aminmax count_nonzero cummax cummin _cummax_helper
    _cummin_helper kthvalue mode median nanmedian quantile nanquantile sort msort argsort topk unique_dim
    unique_consecutive unique_dim_consecutive _unique _unique2 histc bincount histogram
    _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors diff gradient
    searchsorted bucketize isin combinations hash_tensor segment_reduce _is_all_true _is_any_true
    is_nonzero
    """,
    cost=Cost.REDUCTION,
)
# Three overloads, three ops: of all elements, along a dim (two results), elementwise of two tensors.
register_ops("reduction", "max min", cost=Cost.REDUCTION)
register_ops("reduction", "max.other min.other", cost=Cost.POINTWISE, fusable=True)
# They return their argument where there is nothing to sum.
register_ops("reduction", "sum_to_size _grad_sum_to_size", may_alias=("self",), cost=Cost.REDUCTION)
# Its second results are the bin edges, which it returns as they were given.
register_op("aten.histogramdd", family="reduction", may_alias=("bins",), cost=Cost.REDUCTION)
