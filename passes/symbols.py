"""Predicates on sizes that may be symbolic. They add no guards and return False if the answer is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from staticrt.shapes.fake_results import same
from staticrt.shapes.size_checks import statically_known_true


def number(value: Any) -> Any:
    """The number behind an argument: a node's symbolic value, or the literal itself."""
    return value.meta.get("val", value) if isinstance(value, fx.Node) else value


def known_equal(a: Any, b: Any) -> bool:
    """Whether two sizes (int, SymInt or size nodes) are equal for every input."""
    if type(a) is int and type(b) is int:
        return a == b
    a, b = number(a), number(b)
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return a is b
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if same(a, b):
        return True
    if _differ_here(a, b):
        return False
    return bool(statically_known_true(a == b))


def _differ_here(a: Any, b: Any) -> bool:
    """Whether the sizes the graph was traced with show that two are not equal for every input."""
    hints = [x.node.hint if isinstance(x, torch.SymInt) else x for x in (a, b)]
    return None not in hints and hints[0] != hints[1]


def known_equal_all(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(known_equal(x, y) for x, y in zip(a, b, strict=True))


def same_meta(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same dtype, device, layout, sizes, strides and lazy bits, for every input."""
    return (
        a.dtype == b.dtype
        and a.device == b.device
        and a.layout == b.layout == torch.strided
        and known_equal_all(a.shape, b.shape)
        and known_equal_all(a.stride(), b.stride())
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same metadata and storage offset: for views of one storage, the very same elements."""
    return same_meta(a, b) and known_equal(a.storage_offset(), b.storage_offset())
