"""Fake rules of losses and of their gradients."""

from __future__ import annotations

from typing import Any

import torch

from staticrt.shapes.fake_results import agree, new, rule, same
from staticrt.shapes.rules.gradients import are_rows
from staticrt.shapes.rules.pointwise import pointwise

aten = torch.ops.aten


def _have_equal_sizes(x: torch.Tensor, target: torch.Tensor) -> bool:
    return x.dim() == target.dim() and all(map(agree, x.shape, target.shape))


@rule(aten.mse_loss.default, aten.l1_loss.default, aten.smooth_l1_loss.default)
def _distance(mode: Any, x: torch.Tensor, y: torch.Tensor, reduction: int = 1, *rest: Any) -> Any:
    if not x.dtype.is_floating_point or x.dtype != y.dtype:
        return None
    found = pointwise(True, aten.sub.Tensor, mode, x, y)
    return new(mode, [], found) if found is not None and reduction else found


@rule(aten.huber_loss.default)
def _huber(mode: Any, x: torch.Tensor, y: torch.Tensor, reduction: int = 1, *rest: Any) -> Any:
    return _distance(mode, x, y, reduction) if are_rows(x, y) else None


@rule(
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
def _distance_backward(
    mode: Any, gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, *rest: Any
) -> Any:
    if not are_rows(gradient, x, target) or not all(map(same, x.shape, target.shape)):
        return None
    if (
        x.dim() != target.dim()
        or (gradient.dim() and reduction)
        or (x.dim() != gradient.dim() and not reduction)
    ):
        return None
    return new(mode, x.shape, x)


@rule(aten.binary_cross_entropy.default)
def _binary(mode: Any, x: torch.Tensor, target: torch.Tensor, weight: Any = None, reduction: int = 1) -> Any:
    if weight is not None or not are_rows(x, target) or not _have_equal_sizes(x, target):
        return None
    return new(mode, [] if reduction else x.shape, x)


@rule(aten.binary_cross_entropy_backward.default)
def _binary_backward(
    mode: Any, gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: Any = None, *rest: Any
) -> Any:
    return new(mode, x.shape, x) if weight is None and are_rows(gradient, x, target) else None


@rule(aten.binary_cross_entropy_with_logits.default)
def _binary_with_logits(
    mode: Any,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: int = 1,
) -> Any:
    if weight is not None or not are_rows(x, target, pos_weight) or not _have_equal_sizes(x, target):
        return None
    if pos_weight is not None and (
        pos_weight.dim() > x.dim() or not all(map(agree, reversed(pos_weight.shape), reversed(x.shape)))
    ):
        return None
    return new(mode, [] if reduction else x.shape, x)


@rule(aten.nll_loss_forward.default)
def _nll_loss(
    mode: Any, x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, *rest: Any
) -> Any:
    if x.dim() != 2 or target.dim() != 1 or not are_rows(x, weight) or not agree(x.shape[0], target.shape[0]):
        return None
    return new(mode, [] if reduction else target.shape, x), new(mode, [], x)


@rule(aten.nll_loss_backward.default)
def _nll_loss_backward(
    mode: Any, gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: Any, *rest: Any
) -> Any:
    return new(mode, x.shape, x) if x.dim() == 2 and are_rows(gradient, x, weight) else None


# The loss of one sample is a number; torch's rules make a row of it where nothing reduces.


@rule(aten.multi_margin_loss.default)
def _margin_loss(mode: Any, x: torch.Tensor, target: torch.Tensor, *rest: Any) -> Any:
    return new(mode, [], x) if x.dim() == 1 and target.dim() == 0 else None


@rule(aten.multilabel_margin_loss_forward.default)
def _multilabel_loss(mode: Any, x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    if x.dim() != 1 or target.dim() != 1 or not agree(x.shape[0], target.shape[0]):
        return None
    return new(mode, [], x), new(mode, target.shape, x)
