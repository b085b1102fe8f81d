"""Losses, and the optimizers of ONNX's training preview."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Tensor, as_tensor
from staticrt.interop.onnx.registry import op

_PREVIEW = "ai.onnx.preview.training"


@op("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    labels = target.to(torch.int64)
    kept = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
    labels = torch.where(kept, labels, 0)
    loss = -torch.gather(x, 1, labels.unsqueeze(1)).squeeze(1)
    factor = torch.ones_like(loss) if weight is None else weight[labels]
    factor = torch.where(kept, factor, 0)
    loss = torch.where(kept, loss * factor, 0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction != "mean":
        raise OnnxError(f"unknown reduction {reduction!r}")
    if weight is None and ignore_index is None:
        return loss.mean()
    return loss.sum() / factor.sum()


@op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    scores = torch.log_softmax(x, 1)
    loss = negative_log_likelihood(scores, target, weight, ignore_index=ignore_index, reduction=reduction)
    return loss, scores


def _groups(tensors: tuple[Any, ...], each: int) -> list[list[Tensor]]:
    """Inputs are listed kind by kind: all weights, all gradients, all states."""
    count = len(tensors) // each
    values = [as_tensor(value) for value in tensors]
    return [[values[kind * count + i] for kind in range(each)] for i in range(count)]


def _by_kind(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(value for kind in zip(*rows, strict=True) for value in kind)


@op("Adagrad", domain=_PREVIEW)
def adagrad(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> Any:
    now = rate / (1 + step * decay_factor)
    rows = []
    for x, gradient, squares in _groups(tensors, 3):
        gradient = norm_coefficient * x + gradient
        squares = squares + gradient * gradient
        rows.append((x - now * gradient / (torch.sqrt(squares) + epsilon), squares))
    return _by_kind(rows)


@op("Adam", domain=_PREVIEW)
def adam(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Any:
    power = step.to(rate.dtype)
    corrected = rate * torch.sqrt(1 - torch.pow(beta, power)) / (1 - torch.pow(alpha, power))
    now = torch.where(step > 0, corrected, rate)
    rows = []
    for x, gradient, mean, squares in _groups(tensors, 4):
        gradient = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * gradient * gradient
        x = x - now * mean / (torch.sqrt(squares) + epsilon)
        rows.append(((1 - norm_coefficient_post) * x, mean, squares))
    return _by_kind(rows)


@op("Momentum", domain=_PREVIEW)
def momentum(
    rate: Tensor,
    step: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> Any:
    rows = []
    for x, gradient, velocity in _groups(tensors, 3):
        gradient = norm_coefficient * x + gradient
        # The first step takes the gradient whole.
        share = torch.where(step > 0, torch.full((), beta, dtype=x.dtype), torch.ones((), dtype=x.dtype))
        velocity = alpha * velocity + share * gradient
        rows.append((x - rate * (gradient + alpha * velocity if mode == "nesterov" else velocity), velocity))
    return _by_kind(rows)
