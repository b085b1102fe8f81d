"""Views: results without storage of their own, and ops that are views when the strides allow."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

# Their schema says that the result is a view, and it always is.
register_ops(
    "view",
    """
    view view_as _reshape_alias as_strided expand expand_as broadcast_to permute transpose t mT mH adjoint
    numpy_T matrix_H swapaxes swapdims moveaxis movedim squeeze unsqueeze select slice narrow diagonal
    linalg_diagonal unfold split split_with_sizes hsplit vsplit dsplit chunk tensor_split unbind unflatten
    alias detach imag view_as_real view_as_complex _neg_view _conj lift_fresh _ncf_view _ncf_unsqueeze
    _fw_primal
    """,
    cost=Cost.VIEW,
)
# Their schema says view, but they copy (or compute) when strides, dtype or a lazy bit ask for it.
register_ops(
    "view",
    """
    reshape reshape_as flatten ravel contiguous resolve_conj resolve_neg conj real positive pin_memory cpu
    cuda to slice_inverse _autocast_to_full_precision _autocast_to_reduced_precision data
    """,
    may_alias=("self",),
    cost=Cost.VIEW,
)
# Their schema does not say that the result is a view.
register_ops(
    "view",
    "_unsafe_view unsafe_split unsafe_split_with_sizes unsafe_chunk",
    aliases=("self",),
    cost=Cost.VIEW,
)
# Their schema does not say that the result may be a view.
register_ops("view", "atleast_1d atleast_2d atleast_3d", may_alias=("self", "tensors"), cost=Cost.VIEW)
register_ops(
    "view", "broadcast_tensors meshgrid cartesian_prod block_diag", may_alias=("tensors",), cost=Cost.VIEW
)
register_ops(
    "view",
    """
    type_as lift chalf _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short
    to_dense _to_dense
    """,
    may_alias=("self",),
    cost=Cost.VIEW,
)
