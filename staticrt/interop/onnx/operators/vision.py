"""Sampling, boxes and patches."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, axes_of, expect
from staticrt.interop.onnx.boxes import non_max_suppression as _suppress
from staticrt.interop.onnx.boxes import roi_align as _align
from staticrt.interop.onnx.numbers import Numbers, Tensor
from staticrt.interop.onnx.registry import op

_MODES = {
    "linear": "bilinear",
    "bilinear": "bilinear",
    "nearest": "nearest",
    "cubic": "bicubic",
    "bicubic": "bicubic",
}


@op("GridSample", since=16)
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    if mode not in _MODES or (mode in ("cubic", "bicubic") and x.dim() != 4):
        raise OnnxError(f"GridSample with mode {mode!r} on a tensor of rank {x.dim()}")
    return F.grid_sample(x, grid, _MODES[mode], padding_mode, bool(align_corners))


@op("AffineGrid", since=20)
def affine_grid(theta: Tensor, size: Numbers, *, align_corners: int = 0) -> Tensor:
    return F.affine_grid(theta, size.list(), bool(align_corners))


@op("CenterCropPad", since=18)
def center_crop_pad(x: Tensor, shape: Numbers, *, axes: Ints | None = None) -> Tensor:
    wanted = list(range(x.dim())) if axes is None else axes_of(axes, x.dim())
    around: list[Any] = [0] * (2 * x.dim())
    for axis, target in zip(wanted, shape.list(), strict=True):
        size = x.shape[axis]
        if target <= size:
            x = x.narrow(axis, (size - target) // 2, target)
        else:
            place = 2 * (x.dim() - 1 - axis)
            around[place] = (target - size) // 2
            around[place + 1] = target - size - around[place]
    return F.pad(x, around) if any(not (type(p) is int and p == 0) for p in around) else x


@op("NonMaxSuppression", since=10)
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    most: Numbers | None = None,
    iou_threshold: Numbers | None = None,
    score_threshold: Numbers | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    expect(
        boxes.dim() == 3 and scores.dim() == 3 and boxes.shape[1] == scores.shape[2] and boxes.shape[2] == 4,
        f"NonMaxSuppression of boxes {list(map(str, boxes.shape))} and scores {list(map(str, scores.shape))}",
    )
    count = 0 if most is None else int(most.item())
    iou = 0.0 if iou_threshold is None else float(iou_threshold.item())
    lowest = -float("inf") if score_threshold is None else float(score_threshold.item())
    found: Tensor = _suppress(boxes, scores, count, iou, lowest, bool(center_point_box))
    return found


def _roi_align(
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    half_pixel: bool,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    if mode not in ("avg", "max"):
        raise OnnxError(f"unknown mode {mode!r} of RoiAlign")
    expect(
        output_height > 0 and output_width > 0 and sampling_ratio >= 0,
        f"RoiAlign with output_height {output_height}, output_width {output_width} and "
        f"sampling_ratio {sampling_ratio}",
    )
    bins = (output_height, output_width, sampling_ratio, spatial_scale)
    found: Tensor = _align(x, rois, batch.to(torch.int64), *bins, half_pixel, mode == "max")
    return found


@op("RoiAlign", since=16, like=_roi_align)
def roi_align(
    x: Tensor, rois: Tensor, batch: Tensor, *, coordinate_transformation_mode: str = "half_pixel", **bins: Any
) -> Tensor:
    return _roi_align(x, rois, batch, coordinate_transformation_mode == "half_pixel", **bins)


@op("RoiAlign", since=10, like=_roi_align)
def roi_align_10(x: Tensor, rois: Tensor, batch: Tensor, **bins: Any) -> Tensor:
    return _roi_align(x, rois, batch, False, **bins)


@op("Col2Im", since=18)
def col2im(
    x: Tensor,
    image: Numbers,
    block: Numbers,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    sizes, kernel = image.list(), [int(k) for k in block.list()]
    count = len(sizes)
    stride, dilation = list(strides or [1] * count), list(dilations or [1] * count)
    around = list(pads or [0] * 2 * count)
    padded = [s + around[i] + around[count + i] for i, s in enumerate(sizes)]
    # Flat position in the padded image of element k of window w, built up dimension by dimension.
    position = torch.zeros([1, 1], dtype=torch.int64)
    for i in range(count):
        steps = (padded[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        inside = torch.arange(kernel[i]) * dilation[i]
        windows = torch.arange(steps) * stride[i]
        here = inside.unsqueeze(1) + windows.unsqueeze(0)
        joined = position[:, None, :, None] * padded[i] + here[None, :, None, :]
        position = joined.reshape(position.shape[0] * kernel[i], -1)
    channels = x.shape[1] // math.prod(kernel)
    columns = x.reshape(x.shape[0], channels, -1)
    flat = torch.zeros([x.shape[0], channels, math.prod(padded)], dtype=x.dtype, device=x.device)
    found = flat.index_add(2, position.reshape(-1), columns).reshape([x.shape[0], channels, *padded])
    for i in range(count):
        found = found.narrow(2 + i, around[i], sizes[i])
    return found


def _bilinear(planes: Tensor, height: Any, width: Any, y: Tensor, x: Tensor) -> Tensor:
    """Samples [n, channels, points] of planes [n, channels, height * width] at y, x [n, points]; 0 outside."""
    top, left = torch.floor(y), torch.floor(x)
    found: Any = 0
    for row, row_weight in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, column_weight in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = torch.where(inside, row * width + column, 0).to(torch.int64)
            weight = torch.where(inside, row_weight * column_weight, 0).to(planes.dtype)
            index = place.unsqueeze(1).expand(-1, planes.shape[1], -1)
            found = found + torch.gather(planes, 2, index) * weight.unsqueeze(1)
    total: Tensor = found
    return total


@op("DeformConv", since=19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    if x.dim() != 4:
        raise OnnxError(f"DeformConv of a tensor of rank {x.dim()}; 4 is supported")
    stride, dilation, around = list(strides or [1, 1]), list(dilations or [1, 1]), list(pads or [0] * 4)
    batch, channels, height, width = x.shape
    rows, columns = offset.shape[2], offset.shape[3]
    kernel = [int(w.shape[2]), int(w.shape[3])]
    count = kernel[0] * kernel[1]
    shifts = offset.reshape(batch * offset_group, kernel[0], kernel[1], 2, rows, columns)
    down = torch.arange(rows) * stride[0] - around[0]
    right = torch.arange(columns) * stride[1] - around[1]
    y = shifts[:, :, :, 0] + (torch.arange(kernel[0]) * dilation[0])[:, None, None, None] + down[:, None]
    z = shifts[:, :, :, 1] + (torch.arange(kernel[1]) * dilation[1])[:, None, None] + right
    parts = x.reshape(batch * offset_group, channels // offset_group, height * width)
    taken = _bilinear(parts, height, width, y.flatten(1), z.flatten(1))
    taken = taken.reshape(batch, offset_group, channels // offset_group, count, rows * columns)
    if mask is not None:
        taken = taken * mask.reshape(batch, offset_group, 1, count, rows * columns)
    taken = taken.reshape(batch, group, channels // group * count, rows * columns)
    weights = w.reshape(group, w.shape[0] // group, channels // group * count)
    found = torch.matmul(weights, taken).reshape(batch, w.shape[0], rows, columns)
    return found if b is None else found + b.reshape(1, -1, 1, 1)
