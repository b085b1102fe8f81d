"""Convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, expect
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.windows import padded, pads_of

_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def spatial(x: Tensor, table: dict[int, Any]) -> int:
    """How many spatial dimensions a batch has.

    Raises:
        OnnxError: not 1 to 3.
    """
    count = x.dim() - 2
    if count not in table:
        raise OnnxError(f"{count} spatial dimensions; 1 to 3 are supported")
    return count


def _check_kernel(kernel_shape: Ints | None, w: Tensor) -> None:
    if kernel_shape is not None and list(kernel_shape) != list(w.shape[2:]):
        raise OnnxError(f"kernel_shape is {list(kernel_shape)}, the weight's is {list(w.shape[2:])}")


def _check_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    stride: list[int],
    dilation: list[int],
    pads: Ints | None,
    group: int,
) -> None:
    """Raise OnnxError for invalid attributes now, instead of in the kernel of a later call."""
    count = x.dim() - 2
    expect(w.dim() == x.dim(), f"Conv of a tensor of rank {x.dim()} with a weight of rank {w.dim()}")
    expect(
        len(stride) == len(dilation) == count and all(number > 0 for number in (*stride, *dilation)),
        f"Conv with strides {stride} and dilations {dilation} on {count} spatial dimensions",
    )
    expect(pads is None or all(p >= 0 for p in pads), f"Conv with negative pads {list(pads or ())}")
    expect(group > 0 and w.shape[0] % group == 0, f"Conv of {w.shape[0]} channels in {group} groups")
    expect(
        x.shape[1] == w.shape[1] * group,
        f"Conv of {x.shape[1]} channels with a weight for {w.shape[1]} in {group} groups",
    )
    expect(
        b is None or tuple(b.shape) == (w.shape[0],),
        f"Conv with a bias of shape {None if b is None else list(b.shape)} for {w.shape[0]} channels",
    )


@op("Conv")
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    count = spatial(x, _CONV)
    _check_kernel(kernel_shape, w)
    stride, dilation = list(strides or [1] * count), list(dilations or [1] * count)
    _check_conv(x, w, b, stride, dilation, pads, group)
    before, after = pads_of(auto_pad, pads, x.shape[2:], w.shape[2:], stride, dilation)
    if before != after:
        x = padded(x, before, after)
        before = [0] * count
    found: Tensor = _CONV[count](x, w, b, stride, before, dilation, group)
    return found


@op("ConvTranspose")
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    count = spatial(x, _TRANSPOSED)
    _check_kernel(kernel_shape, w)
    stride, dilation = list(strides or [1] * count), list(dilations or [1] * count)
    extra = list(output_padding or [0] * count)
    sizes = list(x.shape[2:])
    full = [
        stride[i] * (sizes[i] - 1) + extra[i] + (w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(count)
    ]
    wanted: list[Any] | None = list(output_shape)[-count:] if output_shape else None
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [sizes[i] * stride[i] for i in range(count)]
    if wanted is not None:
        total = [full[i] - wanted[i] for i in range(count)]
        halves = [t // 2 for t in total]
        rest = [t - h for t, h in zip(total, halves, strict=True)]
        before, after = (halves, rest) if auto_pad == "SAME_UPPER" else (rest, halves)
    else:
        before, after = pads_of(auto_pad, pads, sizes, w.shape[2:], stride, dilation)
    # torch's padding crops both sides equally; the rest is cropped or padded afterwards.
    if (
        before == after
        and all(type(p) is int and p >= 0 for p in before)
        and _native(extra, stride, dilation)
    ):
        found: Tensor = _TRANSPOSED[count](x, w, b, stride, before, extra, group, dilation)
        return found
    found = _TRANSPOSED[count](x, w, None, stride, 0, 0, group, dilation)
    found = padded(found, [-p for p in before], [e - p for e, p in zip(extra, after, strict=True)])
    return found if b is None else found + b.reshape([-1, *[1] * count])


def _native(extra: list[int], stride: list[int], dilation: list[int]) -> bool:
    return all(e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True))


@op("ConvInteger", since=10, like=conv)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    **windows: Any,
) -> Tensor:
    """Computed in float64, which holds every sum of int8 products exactly."""
    left, right = x.double(), w.double()
    if x_zero is not None:
        left = left - x_zero.double()
    if w_zero is not None:
        right = right - w_zero.double().reshape([-1, *[1] * (w.dim() - 1)])
    found = conv(left, right, **windows)
    return found.to(torch.int32)
