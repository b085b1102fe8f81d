"""Padding and counting of the windows of convolutions and pools."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints
from staticrt.interop.onnx.numbers import Tensor


def pads_of(
    auto_pad: str, pads: Ints | None, sizes: Ints, kernel: Ints, strides: Ints, dilations: Ints
) -> tuple[list[Any], list[Any]]:
    """Padding before and after each spatial dimension, from the attributes of a node."""
    count = len(sizes)
    if auto_pad in ("NOTSET", ""):
        given = list(pads) if pads is not None else [0] * 2 * count
        if len(given) != 2 * count:
            raise OnnxError(f"{len(given)} pads for {count} spatial dimensions")
        return given[:count], given[count:]
    if auto_pad == "VALID":
        return [0] * count, [0] * count
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise OnnxError(f"unknown auto_pad {auto_pad!r}")
    before, after = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        out = (size + stride - 1) // stride
        total: Any = (out - 1) * stride + (k - 1) * dilation + 1 - size
        total = 0 if total < 0 else total
        small, large = total // 2, total - total // 2
        before.append(small if auto_pad == "SAME_UPPER" else large)
        after.append(large if auto_pad == "SAME_UPPER" else small)
    return before, after


def padded(x: Tensor, before: Ints, after: Ints, value: float = 0.0) -> Tensor:
    """A tensor with its last dimensions padded; negative padding crops."""
    flat: list[Any] = []
    for first, last in zip(reversed(list(before)), reversed(list(after)), strict=True):
        flat += [first, last]
    if all(type(p) is int and p == 0 for p in flat):
        return x
    return F.pad(x, flat, value=value)


def count_windows(
    size: Any, kernel: int, stride: int, dilation: int, before: Any, after: Any, ceil: int
) -> tuple[Any, Any]:
    """The number of windows along a dimension, and the extra padding that the last one needs."""
    reach = dilation * (kernel - 1) + 1
    room = size + before + after - reach
    count = (room + stride - 1) // stride + 1 if ceil else room // stride + 1
    if ceil and (count - 1) * stride >= size + before:  # it would start in the padding after the dimension
        count = count - 1
    extra = (count - 1) * stride + reach - (size + before + after)
    return count, 0 if extra < 0 else extra
