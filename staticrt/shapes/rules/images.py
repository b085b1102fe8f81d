"""Fake rules of pooling and of grid sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import Unknown, agree, new, rule
from staticrt.shapes.rules.layout import new_as_suggested, suggested_strides
from staticrt.shapes.size_checks import check as _check

aten = torch.ops.aten


def _pair(value: Any) -> list[int]:
    """A parameter of two dimensions as two numbers; raises `Unknown` if it is not one or two plain numbers."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    values = values * 2 if len(values) == 1 else values
    if len(values) != 2 or any(type(v) is not int for v in values):
        raise Unknown
    return values


def _pooled_size(size: Any, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Any:
    """The number of windows that fit; raises `Unknown` where only a guard could tell (`pooling_output_shape` of ATen)."""
    reach = dilation * (kernel - 1) + 1
    if not ceil_mode:
        return (size + 2 * padding - reach) // stride + 1
    if padding + stride > reach:  # a last window that begins in the padding is left out
        raise Unknown
    return (size + 2 * padding - reach + stride - 1) // stride + 1


def _pooled(
    mode: Any,
    x: torch.Tensor,
    window: Sequence[Any],
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
) -> Any:
    kernel, steps, pads, spread = _pair(window), _pair(stride or window), _pair(padding), _pair(dilation)
    fits = all(0 <= 2 * p <= k for p, k in zip(pads, kernel, strict=True))
    if x.dim() != 4 or x.is_quantized or min(*kernel, *steps, *spread) < 1 or not fits:
        raise Unknown
    sizes = [
        _pooled_size(*numbers, ceil_mode)
        for numbers in zip(x.shape[2:], kernel, steps, pads, spread, strict=True)
    ]
    strides = suggested_strides(mode, x, [*x.shape[:2], *sizes])
    for size in (*sizes, *x.shape[1:]):  # a window of padding alone is refused
        _check(size > 0)
    return new(mode, [*x.shape[:2], *sizes], x, strides)


@rule(aten.max_pool2d.default)
def _max_pool(
    mode: Any,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    return _pooled(mode, x, window, stride, padding, dilation, ceil_mode)


@rule(aten.max_pool2d_with_indices.default)
def _max_pool_with_indices(mode: Any, x: Any, *how: Any, **keywords: Any) -> Any:
    values = _max_pool(mode, x, *how, **keywords)
    return values, new(mode, values.shape, x, values.stride(), dtype=torch.int64)


@rule(aten.avg_pool2d.default)
def _avg_pool(
    mode: Any,
    x: Any,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Any:
    if divisor_override == 0 or not x.dtype.is_floating_point:
        return None
    return _pooled(mode, x, window, stride, padding, 1, ceil_mode)


@rule(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
def _adaptive_avg_pool(mode: Any, x: torch.Tensor, size: Sequence[Any]) -> Any:
    if x.dim() not in (3, 4):
        return None
    for each in x.shape[-3:]:  # torch's rule does not look
        _check(each > 0)
    if x.dim() != 4 or len(size) != 2 or not x.dtype.is_floating_point:
        return None
    if not all(isinstance(s, int) and s > 0 for s in size):
        return None
    return new_as_suggested(mode, [*x.shape[:2], *size], x)


@rule(aten.grid_sampler.default, aten.grid_sampler_2d.default)
def _grid_sample(mode: Any, x: torch.Tensor, grid: torch.Tensor, *settings: Any) -> Any:
    if (
        x.dim() != 4
        or grid.dim() != 4
        or x.dtype != grid.dtype
        or x.is_quantized
        or not x.dtype.is_floating_point
    ):
        return None
    if not agree(x.shape[0], grid.shape[0]) or not agree(grid.shape[3], 2):
        return None
    for size in x.shape[2:]:
        _check(size > 0)
    # The kernel returns a row-major result for every input layout.
    return new(mode, [*x.shape[:2], *grid.shape[1:3]], x)


@rule(aten.affine_grid_generator.default)
def _affine_grid(mode: Any, theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> Any:
    spatial = len(size) - 2
    if spatial not in (2, 3) or theta.dim() != 3 or theta.dtype not in (torch.float32, torch.float64):
        return None
    wanted = (size[0], spatial, spatial + 1)
    if not all(agree(own, other) for own, other in zip(theta.shape, wanted, strict=True)):
        return None
    for each in (size[0], *size[2:]):
        _check(each > 0)
    return new(mode, [size[0], *size[2:], spatial], theta)
