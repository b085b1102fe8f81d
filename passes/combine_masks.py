"""Combines the masks applied to scores into the one argument that `scaled_dot_product_attention` takes.

See Note [Rows that are masked everywhere] in `fuse_attention.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from staticrt.passes.attention_masks import hides_future, is_causal, never_hides_fully
from staticrt.passes.rewrite import fake_mode_of, insert_call
from staticrt.passes.symbols import known_equal
from staticrt.shapes.size_checks import statically_known_true

aten = torch.ops.aten


@dataclass(frozen=True)
class MaskStep:
    """One masking of scores: `mask` is added, or scores become `value` where `mask` is `when`."""

    mask: fx.Node
    value: float | None = None  # None: added
    when: bool = True


class Masks:
    """Masks for `scaled_dot_product_attention`, built once for all layers that share one.

    Nodes are inserted before the first layer that needs them, so that later ones may read them.
    """

    def __init__(self) -> None:
        self._made: dict[Any, tuple[fx.Node | None, bool, fx.Node | None]] = {}

    def of(
        self, steps: Sequence[MaskStep], scores: torch.Tensor, at: fx.Node
    ) -> tuple[fx.Node | None, bool, fx.Node | None]:
        """(mask or None, whether attention is causal, rows that are hidden everywhere or None).

        Args:
            steps: the maskings of the scores, in order.
            scores: fake, [batch, heads, rows, keys] or without heads.
            at: the attention; new calls go before it.
        """
        if not steps:
            return None, False, None
        first = steps[0]
        if len(steps) == 1 and (
            is_causal(first.mask) if first.value is None else hides_future(first.mask) is first.when
        ):
            return None, True, None
        rank = scores.dim()
        key = (rank, scores.dtype, *steps)
        if key not in self._made:
            self._made[key] = _build_mask(steps, rank, scores.dtype, at)
        return self._made[key]


def _build_mask(
    steps: Sequence[MaskStep], rank: int, dtype: torch.dtype, at: fx.Node
) -> tuple[fx.Node, bool, fx.Node | None]:
    first = steps[0]
    if len(steps) == 1 and first.value == -math.inf:
        mask = _of_rank_4(first.mask, rank, at)
        opposite = insert_call(at, aten.logical_not.default, (mask,), value=fake_like(mask, torch.bool))
        shown, hidden = (opposite, mask) if first.when else (mask, opposite)
        return shown, False, _hidden_rows(hidden, at)
    total: fx.Node | None = None
    for step in steps:
        mask = _of_rank_4(step.mask, rank, at)
        if step.value is None:
            if total is not None:
                mask = insert_call(at, aten.add.Tensor, (total, mask), value=_broadcast(total, mask))
            total = mask
            continue
        value = step.value if step.value == -math.inf else torch.finfo(dtype).min
        if total is None:
            total = insert_call(at, aten.full.default, ([], 0.0), {"dtype": dtype})
        op = aten.where.ScalarSelf if step.when else aten.where.ScalarOther
        known = _broadcast(total, mask)
        total = insert_call(at, op, (mask, value, total) if step.when else (mask, total, value), value=known)
    assert total is not None
    single = len(steps) == 1
    safe = single and (never_hides_fully(first.mask) if first.value is None else first.value != -math.inf)
    if safe:
        return total, False, None
    hidden = insert_call(at, aten.eq.Scalar, (total, -math.inf), value=fake_like(total, torch.bool))
    return total, False, _hidden_rows(hidden, at)


def fake_like(node: fx.Node, dtype: torch.dtype) -> torch.Tensor:
    """The fake result of a pointwise call; torch's own functions take milliseconds for symbolic sizes."""
    x: torch.Tensor = node.meta["val"]
    if x.dtype == dtype:
        return x
    with fake_mode_of(x):
        if any(known_equal(stride, 0) for stride in x.stride()):  # expanded: the result is not
            return x.new_empty(x.shape, dtype=dtype)
        return x.new_empty_strided(x.shape, x.stride(), dtype=dtype)


def _broadcast(a: fx.Node, b: fx.Node) -> torch.Tensor:
    """The fake result, of a's dtype, of a pointwise call on two tensors."""
    x, y = a.meta["val"], b.meta["val"]
    shape = list(x.shape if x.dim() >= y.dim() else y.shape)
    for d in range(1, min(x.dim(), y.dim()) + 1):
        shape[-d] = y.shape[-d] if known_equal(x.shape[-d], 1) else x.shape[-d]
    with fake_mode_of(y):  # x may be a number of no mode
        made: torch.Tensor = y.new_empty(shape, dtype=x.dtype)
    return made


def _of_rank_4(mask: fx.Node, rank: int, at: fx.Node) -> fx.Node:
    """A mask of scores of rank 3 or 4 for scores [batch, heads, rows, keys]."""
    dims = mask.meta["val"].dim()
    if rank == 3 and dims == 3:
        return insert_call(at, aten.unsqueeze.default, (mask, 1))
    while dims in (1, 3):
        mask = insert_call(at, aten.unsqueeze.default, (mask, 0))
        dims += 1
    return mask


def _hidden_rows(hidden: fx.Node, at: fx.Node) -> fx.Node:
    """Rows of which every key is hidden: bool [..., rows, 1]. Without keys there are none."""
    meta = hidden.meta["val"]
    with fake_mode_of(meta):
        value = meta.new_empty([*meta.shape[:-1], 1])
    rows = insert_call(at, aten.all.dim, (hidden, -1, True), value=value)
    if statically_known_true(meta.shape[-1] > 0):
        return rows
    some = insert_call(at, aten.any.dim, (hidden, -1, True), value=value)
    return insert_call(at, aten.logical_and.default, (rows, some), value=value)
