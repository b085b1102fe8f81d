"""Operators that raise for some contents of their arguments: an index out of range, a singular matrix, division by zero.

Eager raises such an error although the result is unused. What only sizes and dtypes decide is not meant: traces are
guarded by those.
"""

from __future__ import annotations

import functools

import torch

# Key in a node's `meta`: its result is unused, and it stays for its error.
MAY_RAISE = "may_raise"
# Names without namespace, overload and the underscore of in-place operators.
_NAMES = """
    embedding embedding_bag gather index index_add index_copy index_fill index_put index_reduce index_select one_hot put
    scatter scatter_add scatter_reduce take take_along_dim
    _embedding_bag _embedding_bag_forward_only _index_put_impl _unsafe_index_put max_unpool2d max_unpool3d
    masked_scatter repeat_interleave segment_reduce
    bincount histc quantile nanquantile
    binary_cross_entropy cross_entropy cross_entropy_loss ctc_loss multi_margin_loss multilabel_margin_loss
    multilabel_margin_loss_forward nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd
    cholesky cholesky_inverse inverse linalg_cholesky linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv
    linalg_lstsq linalg_lu_factor linalg_pinv linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    lu_unpack svd _linalg_eigh _linalg_svd
    """
_RAISING = frozenset(_NAMES.split())
# These, and Fourier transforms, refuse empty tensors, booleans or places beyond the memory, which fake tensors do not show.
_UNTOLD = frozenset(("argmax", "argmin", "as_strided", "max", "median", "min", "mode", "nanmedian"))
# These raise only where they divide integers.
_DIVISIONS = frozenset(("div", "divide", "floor_divide", "floordiv", "fmod", "mod", "remainder"))


def may_raise(target: torch._ops.OpOverload, result: object) -> bool:
    """Whether an operator may raise by what its arguments hold.

    Args:
        target: the operator.
        result: its result, or a fake one.
    """
    return target._overloadname != "other" and may_raise_named(_base_name(target), result)


def may_raise_named(name: str, result: object) -> bool:
    """As `may_raise`, of a function or method of torch by its name."""
    name = name if name.endswith("__") else name.removesuffix("_")
    if name in _DIVISIONS:
        return isinstance(result, torch.Tensor) and not (result.is_floating_point() or result.is_complex())
    return name in _RAISING or name in _UNTOLD or "upsample" in name or "fft" in name or name == "interpolate"


@functools.cache
def _base_name(target: torch._ops.OpOverload) -> str:
    return str(target._schema.name).partition("::")[2]
