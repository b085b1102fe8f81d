"""Views: results without storage of their own, and ops that are views when the strides allow."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op

# Their schema says that the result is a view, and it always is.
ALWAYS = [
    "view",
    "view_as",
    "_reshape_alias",
    "as_strided",
    "expand",
    "expand_as",
    "broadcast_to",
    "permute",
    "transpose",
    "t",
    "mT",
    "mH",
    "adjoint",
    "numpy_T",
    "matrix_H",
    "swapaxes",
    "swapdims",
    "moveaxis",
    "movedim",
    "squeeze",
    "unsqueeze",
    "select",
    "slice",
    "narrow",
    "diagonal",
    "linalg_diagonal",
    "unfold",
    "split",
    "split_with_sizes",
    "hsplit",
    "vsplit",
    "dsplit",
    "chunk",
    "tensor_split",
    "unbind",
    "unflatten",
    "alias",
    "detach",
    "imag",
    "view_as_real",
    "view_as_complex",
    "_neg_view",
    "_conj",
    "lift_fresh",
    "_ncf_view",
    "_ncf_unsqueeze",
    "_fw_primal",
]
# Their schema says view, but they copy (or compute) when strides, dtype or a lazy bit ask for it.
MAYBE = [
    "reshape",
    "reshape_as",
    "flatten",
    "ravel",
    "contiguous",
    "resolve_conj",
    "resolve_neg",
    "conj",
    "real",
    "positive",
    "pin_memory",
    "cpu",
    "cuda",
    "to",
    "slice_inverse",
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "data",
]
# Views that the schema is silent about.
SILENT = {
    "_unsafe_view": "self",
    "unsafe_split": "self",
    "unsafe_split_with_sizes": "self",
    "unsafe_chunk": "self",
}
SILENT_MAYBE = {
    "atleast_1d": ("self", "tensors"),
    "atleast_2d": ("self", "tensors"),
    "atleast_3d": ("self", "tensors"),
    "broadcast_tensors": ("tensors",),
    "meshgrid": ("tensors",),
    "type_as": ("self",),
    "lift": ("self",),
    "chalf": ("self",),
    "_cast_Byte": ("self",),
    "_cast_Char": ("self",),
    "_cast_Double": ("self",),
    "_cast_Float": ("self",),
    "_cast_Half": ("self",),
    "_cast_Int": ("self",),
    "_cast_Long": ("self",),
    "_cast_Short": ("self",),
    "cartesian_prod": ("tensors",),
    "block_diag": ("tensors",),
    "to_dense": ("self",),
    "_to_dense": ("self",),
}

for _name in ALWAYS:
    register_op(f"aten.{_name}", family="view", cost=Cost.VIEW)
for _name in MAYBE:
    register_op(f"aten.{_name}", family="view", may_alias=("self",), cost=Cost.VIEW)
for _name, _source in SILENT.items():
    register_op(f"aten.{_name}", family="view", aliases=(_source,), cost=Cost.VIEW)
for _name, _sources in SILENT_MAYBE.items():
    register_op(f"aten.{_name}", family="view", may_alias=_sources, cost=Cost.VIEW)
