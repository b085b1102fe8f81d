"""Operators on boxes with data-dependent result sizes: custom operators, which the runtime calls directly."""

from __future__ import annotations

import math
from typing import Any

import torch

from staticrt.interop.onnx.numbers import Tensor


@torch.library.custom_op("staticrt::non_max_suppression", mutates_args=())
def non_max_suppression(
    boxes: Tensor, scores: Tensor, most: int, iou: float, lowest: float, centered: bool
) -> Tensor:
    """Greedy suppression per batch and class.

    Args:
        boxes: [batch, boxes, 4], two corners in any order, or centre and size if `centered`.
        scores: [batch, classes, boxes].
        most: boxes kept per batch and class.

    Returns:
        int64 [kept, 3]: batch, class, box; best score first within a class.
    """
    found: list[Tensor] = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], centered)
        areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        for label in range(scores.shape[1]):
            row = scores[batch, label]
            order = torch.sort(row, descending=True, stable=True).indices
            order = order[row[order] > lowest]
            kept = 0
            while kept < most and order.numel():
                best, order = order[0], order[1:]
                found.append(torch.stack([torch.tensor(batch), torch.tensor(label), best]))
                kept += 1
                first = torch.maximum(corners[best, :2], corners[order, :2])
                last = torch.minimum(corners[best, 2:], corners[order, 2:])
                shared = (last - first).clamp(min=0).prod(-1)
                union = areas[best] + areas[order] - shared
                order = order[~((union > 0) & (shared / union > iou))]
    return torch.stack(found) if found else torch.zeros([0, 3], dtype=torch.int64)


def _corners(boxes: Tensor, centered: bool) -> Tensor:
    if centered:
        half = boxes[:, 2:] / 2
        return torch.cat([boxes[:, :2] - half, boxes[:, :2] + half], 1)
    return torch.cat(
        [torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])], 1
    )


@non_max_suppression.register_fake
def _(boxes: Tensor, scores: Tensor, most: int, iou: float, lowest: float, centered: bool) -> Tensor:
    return boxes.new_empty([torch.library.get_ctx().new_dynamic_size(), 3], dtype=torch.int64)


@torch.library.custom_op("staticrt::roi_align", mutates_args=())
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    height: int,
    width: int,
    ratio: int,
    scale: float,
    half_pixel: bool,
    largest: bool,
) -> Tensor:
    """Bilinear samples of each region, averaged (or the largest weighted corner taken) per bin.

    Args:
        x: [batch, channels, H, W]. rois: [regions, 4], x and y of two corners. batch: int64 [regions].
        ratio: samples per bin and direction; 0: as many as the bin has pixels.

    Returns:
        [regions, channels, height, width].
    """
    found = x.new_empty([rois.shape[0], x.shape[1], height, width])
    shift = 0.5 if half_pixel else 0.0
    for region in range(rois.shape[0]):
        x0, y0, x1, y1 = (float(v) * scale - shift for v in rois[region])
        wide, high = x1 - x0, y1 - y0
        if not half_pixel:
            wide, high = max(wide, 1.0), max(high, 1.0)
        across = ratio or max(math.ceil(wide / width), 1)
        down = ratio or max(math.ceil(high / height), 1)
        ys = y0 + (torch.arange(height * down) + 0.5) * (high / (height * down))
        xs = x0 + (torch.arange(width * across) + 0.5) * (wide / (width * across))
        plane = x[int(batch[region])]
        corners = _sample(plane, ys, xs)
        value = corners.amax(0) if largest else corners.sum(0)
        bins = value.reshape(x.shape[1], height, down, width, across)
        found[region] = bins.amax((2, 4)) if largest else bins.mean((2, 4))
    return found


def _sample(plane: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """The four weighted corners of each sample of a plane [channels, H, W]: [4, channels, ys, xs]."""
    height, width = plane.shape[1:]
    rows = _neighbours(ys, height, plane.dtype)
    columns = _neighbours(xs, width, plane.dtype)
    parts = []
    for row, row_weight in rows:
        for column, column_weight in columns:
            weight = row_weight[:, None] * column_weight[None, :]
            parts.append(plane[:, row][:, :, column] * weight)
    return torch.stack(parts)


def _neighbours(position: Tensor, size: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Both neighbours of each position with their weights; 0 more than a pixel outside."""
    outside = (position < -1) | (position > size)
    inner = position.clamp(min=0)
    low = inner.floor().long().clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    share = torch.where(low >= size - 1, torch.zeros_like(inner), inner - low)
    weights = [torch.where(outside, torch.zeros_like(share), w).to(dtype) for w in (1 - share, share)]
    return [(low, weights[0]), (high, weights[1])]


@roi_align.register_fake
def _(x: Tensor, rois: Tensor, batch: Tensor, height: int, width: int, *_how: Any) -> Tensor:
    return x.new_empty([rois.shape[0], x.shape[1], height, width])
