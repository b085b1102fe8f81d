"""Sizes, numbers and questions about tensors: ops and Python functions whose results are not tensors."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "scalar",
    """
    sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous size stride numel dim
    storage_offset is_contiguous is_non_overlapping_and_dense is_strides_like_format is_same_size
    is_floating_point is_complex is_conj is_neg is_signed is_pinned is_inference result_type element_size
    _local_scalar_dense item Bool Int Float Complex ScalarImplicit IntImplicit FloatImplicit
    ComplexImplicit len _is_zerotensor get_device
    """,
    cost=Cost.VIEW,
)
register_ops(
    "scalar",
    """
    add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ invert lshift
    rshift getitem index truth is_ is_not
    """,
    namespace="operator",
    cost=Cost.VIEW,
)
register_ops(
    "scalar",
    """
    ceil floor trunc sqrt cos cosh sin sinh tan tanh acos asin atan atan2 exp log log2 log10 pow fabs
    """,
    namespace="math",
    cost=Cost.VIEW,
)
register_ops(
    "scalar",
    """
    sym_float sym_int sym_max sym_min sym_not sym_ite sym_sum _sym_sqrt _sym_cos _sym_cosh _sym_sin
    _sym_sinh _sym_tan _sym_tanh _sym_acos _sym_asin _sym_atan _sym_log2 _sym_exp
    """,
    namespace="torch",
    cost=Cost.VIEW,
)
register_ops("scalar", "max min round int float bool abs pow", namespace="builtins", cost=Cost.VIEW)
