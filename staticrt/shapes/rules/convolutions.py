"""Fake rules of convolutions."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from staticrt.shapes.fake_results import (
    agree,
    cpu_kernels,
    expression,
    is_contiguous,
    oblivious,
    on_device,
    rule,
)
from staticrt.shapes.rules.layout import new_as_suggested, suggests_image
from staticrt.shapes.size_checks import check as _check

aten = torch.ops.aten


def conv_size(mode: Any, size: Any, weight: Any, padding: Any, dilation: Any, stride: Any) -> Any:
    """The number of windows that fit, at least 1. Equal arguments share the symbolic result, which is slow to build."""
    cache = mode.__dict__.setdefault("_staticrt_windows", {})
    key = (*map(expression, (size, weight, padding, dilation, stride)), oblivious())
    found = cache.get(key)
    if found is None:
        shrinks_by = dilation * (weight - 1) - 2 * padding
        if isinstance(shrinks_by, int) and shrinks_by == 0 and isinstance(stride, int) and stride == 1:
            found = size
        else:
            found = (size - shrinks_by - 1) // stride + 1
        _check(found > 0)
        if not (isinstance(padding, int) and padding == 0):  # a window of padding alone is refused
            _check(size > 0)
        cache[key] = found
    return found


def _spread(value: Any, count: int) -> list[Any]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _are_plain(spatial: int, x: torch.Tensor, weight: torch.Tensor, bias: Any) -> bool:
    """A batch for the CPU's kernels, and weights of its dtype."""
    return (
        x.dim() == weight.dim() == spatial + 2
        and x.dtype == weight.dtype
        and x.device.type in cpu_kernels
        and is_contiguous(weight)
        and (bias is None or bias.dtype == x.dtype)
    )


def _conv(
    spatial: int,
    mode: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if not _are_plain(spatial, x, weight, bias):
        return None
    if spatial == 3 and suggests_image(mode, x) is not False:
        return None  # the image's size decides which kernel runs, and so the layout
    _check(x.shape[1] == weight.shape[1] * groups)
    sizes = [
        conv_size(mode, *numbers)
        for numbers in zip(
            x.shape[2:],
            weight.shape[2:],
            _spread(padding, spatial),
            _spread(dilation, spatial),
            _spread(stride, spatial),
            strict=True,
        )
    ]
    return new_as_suggested(mode, [x.shape[0], weight.shape[0], *sizes], x)


def _conv_named(
    spatial: int,
    mode: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if weight.dim() != spatial + 2:
        return None
    if padding == "valid":
        return _conv(spatial, mode, x, weight, bias, stride, 0, dilation, groups)
    if padding != "same" or any(step != 1 for step in _spread(stride, spatial)):
        return None
    if not all(isinstance(size, int) for size in weight.shape):
        return None
    # If the padding is odd, torch pads one side separately; the sizes are the same.
    if _conv(spatial, mode, x, weight, bias, stride, _half(weight, dilation), dilation, groups) is None:
        return None
    return new_as_suggested(mode, [x.shape[0], weight.shape[0], *x.shape[2:]], x)


for _spatial, _packet in ((1, aten.conv1d), (2, aten.conv2d), (3, aten.conv3d)):
    rule(_packet.default)(functools.partial(_conv, _spatial))
    rule(_packet.padding)(functools.partial(_conv_named, _spatial))


def _conv_transposed(
    spatial: int,
    mode: Any,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    plain = all(
        type(n) is int
        for value in (stride, padding, output_padding, dilation)
        for n in _spread(value, spatial)
    )
    if not plain or not _are_plain(spatial, x, weight, bias):
        return None
    if not agree(x.shape[1], weight.shape[0]):
        return None
    sizes = []
    for size, width, step, pad, more, spread in zip(
        x.shape[2:],
        weight.shape[2:],
        _spread(stride, spatial),
        _spread(padding, spatial),
        _spread(output_padding, spatial),
        _spread(dilation, spatial),
        strict=True,
    ):
        if not 0 <= more < max(step, spread):
            return None
        made = (size - 1) * step - 2 * pad + spread * (width - 1) + more + 1
        _check(size > 0)
        _check(made > 0)
        sizes.append(made)
    return new_as_suggested(mode, [x.shape[0], weight.shape[1] * groups, *sizes], x)


rule(aten.conv_transpose1d.default)(functools.partial(_conv_transposed, 1))
rule(aten.conv_transpose2d.input)(functools.partial(_conv_transposed, 2))


def _by_cpu_kernels(op: Any, mode: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The layouts that torch's rule gives on the CPU; on other devices that rule assumes other kernels."""
    if x.device.type == "cpu" or x.device.type not in cpu_kernels:
        return None

    def moved(value: Any, device: torch.device) -> Any:
        return tree_map_only(torch.Tensor, lambda t: on_device(mode, t, device), value)

    there = moved((x, args, kwargs), torch.device("cpu"))
    with mode:
        found = op(there[0], *there[1], **there[2])
    return moved(found, x.device)


for _op in (aten.convolution.default, aten.convolution_backward.default):
    rule(_op)(functools.partial(_by_cpu_kernels, _op))


def _half(weight: torch.Tensor, dilation: Any) -> list[int]:
    """The padding of each side, rounded up."""
    spread = _spread(dilation, weight.dim() - 2)
    return [(step * (size - 1) + 1) // 2 for size, step in zip(weight.shape[2:], spread, strict=True)]
