"""Compares an answer with eager's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def leaves(answer: Any) -> list[Tensor]:
    """The tensors of an answer in order, from any container."""
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Difference:
    """The largest deviation of an answer.

    Attributes:
        absolute: largest |got - expected|; inf where one is not finite and the other differs.
        relative: `absolute` over the largest magnitude expected in that tensor.
        reason: None if within tolerance, else what is wrong.
    """

    absolute: float
    relative: float
    reason: str | None


def difference(got: list[Tensor], expected: list[Tensor], *, rtol: float, atol: float) -> Difference:
    """Compare answers: number of tensors, shapes, dtypes, then values.

    A value is right within rtol of its own magnitude plus atol of the tensor's largest; integers and bools
    must be equal.
    """
    if len(got) != len(expected):
        return Difference(float("inf"), float("inf"), f"{len(got)} tensors, expected {len(expected)}")
    worst, worst_relative, reason = 0.0, 0.0, None
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"output {index}"
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            wrong = (
                f"{where} is {ours.dtype} {list(ours.shape)}, expected {theirs.dtype} {list(theirs.shape)}"
            )
            return Difference(float("inf"), float("inf"), wrong)
        if ours.numel() == 0:
            continue
        a, b = ours.to(torch.float64), theirs.to(torch.float64)
        same = (a == b) | (a.isnan() & b.isnan())
        error = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
        finite = b[b.isfinite()].abs()
        largest = float(finite.max()) if finite.numel() else 0.0
        peak = float(error.max())
        worst = max(worst, peak)
        worst_relative = max(worst_relative, peak / largest if largest else (float("inf") if peak else 0.0))
        allowed = rtol * b.abs() + atol * largest if ours.dtype.is_floating_point else torch.zeros_like(b)
        allowed = allowed.nan_to_num(nan=0.0, posinf=0.0)
        if reason is None and bool((error > allowed).any()):
            reason = f"{where} is off by {peak:.3g}, largest value {largest:.3g}"
    return Difference(worst, worst_relative, reason)
