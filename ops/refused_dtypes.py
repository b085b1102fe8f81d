"""Operators whose kernels refuse the dtypes of their arguments, which fake tensors do not tell: torch is asked.

Eager raises such an error although the result is unused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_LARGEST = 1 << 14  # elements of an argument or a result with which an operator is tried
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_known: dict[Any, bool] = {}


def refuses_dtypes(target: torch._ops.OpOverload, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether an operator raises for ones of the dtypes and sizes of these arguments; asked once for all sizes.

    False where that is not known: for other devices, operators of others, large arguments or results, sizes that data
    decides.

    Args:
        result: its result for these arguments; fake tensors, as those are.
    """
    if target.namespace != "aten":
        return False
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = (target, structure, *map(_kind, leaves))
    if key in _known:
        return _known[key]
    try:
        made = [_like(leaf) for leaf in leaves]
        for leaf in pytree.tree_leaves(result):
            _like(leaf)
    except _NotTried:
        return False
    args, kwargs = pytree.tree_unflatten(made, structure)
    try:
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            target(*args, **kwargs)
        refused = False
    except Exception:
        refused = True
    if all(leaf.numel() for leaf in made if isinstance(leaf, torch.Tensor)):  # empty ones may reach no kernel
        _known[key] = refused
    return refused


class _NotTried(Exception):
    """An argument's example cannot be made."""


def _kind(leaf: Any) -> Any:
    """What of an argument decides whether it is refused: all but the sizes and contents of tensors."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    return type(leaf), None if isinstance(leaf, _SYMBOLIC) else leaf


def _like(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.device.type != "cpu" or leaf.layout != torch.strided or leaf.is_quantized:
            raise _NotTried
        sizes = [_like(size) for size in leaf.shape]
        if math.prod(sizes) > _LARGEST:
            raise _NotTried
        with _disable_current_modes():
            return torch.ones(sizes, dtype=leaf.dtype)
    if isinstance(leaf, _SYMBOLIC):
        hint = getattr(leaf.node, "hint", None)  # not has_hint(), which our own sizes deny
        if hint is None:
            raise _NotTried
        return hint
    return leaf
