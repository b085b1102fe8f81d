"""Fake rules of the CTC loss, whose table of saved probabilities is as wide as the longest target makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import cpu_kernels, new, rule

aten = torch.ops.aten


def _is_batch(log_probs: torch.Tensor) -> bool:
    plain = log_probs.layout == torch.strided and log_probs.device.type in cpu_kernels
    return plain and log_probs.dtype in (torch.float32, torch.float64) and log_probs.dim() == 3


def _losses_and_table(mode: Any, log_probs: torch.Tensor, width: Any) -> Any:
    times, batch, _classes = log_probs.shape
    return new(mode, [batch], log_probs), new(mode, [batch, times, width], log_probs)


@rule(aten._ctc_loss.default)
def _of_lists(
    mode: Any,
    log_probs: torch.Tensor,
    _targets: Any,
    _lengths: Any,
    target_lengths: Sequence[int],
    *rest: Any,
) -> Any:
    if not _is_batch(log_probs):
        return None
    return _losses_and_table(mode, log_probs, 2 * max(target_lengths, default=0) + 1)


@rule(aten._ctc_loss.Tensor)
def _of_tensors(mode: Any, log_probs: torch.Tensor, *rest: Any) -> Any:
    if not _is_batch(log_probs) or mode.shape_env is None:
        return None
    width = mode.shape_env.create_unbacked_symint()
    torch._check(width >= 1)  # type: ignore[no-untyped-call]
    return _losses_and_table(mode, log_probs, width)


@rule(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def _backward(mode: Any, _gradient: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> Any:
    return new(mode, log_probs.shape, log_probs) if _is_batch(log_probs) else None


@rule(aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
def _whole(
    mode: Any,
    log_probs: torch.Tensor,
    _targets: Any,
    _lengths: Any,
    _target_lengths: Any,
    _blank: int = 0,
    reduction: int = 1,
    *rest: Any,
) -> Any:
    if log_probs.dim() == 2:
        return new(mode, [], log_probs)
    if not _is_batch(log_probs):
        return None
    return new(mode, [] if reduction else [log_probs.shape[1]], log_probs)
