"""Resize and its ancestor Upsample: interpolation, one axis at a time.

Along each axis an output element is a weighted sum of a few input elements; which and how much follows from the
coordinate transformation. Sizes may be symbolic. The commonest forms become torch's own kernels.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, axes_of
from staticrt.interop.onnx.numbers import SYMBOLIC, Numbers, Tensor, whole
from staticrt.interop.onnx.registry import op
from staticrt.shapes.size_checks import statically_known_true


@dataclasses.dataclass(frozen=True)
class Rule:
    """The attributes of a Resize node."""

    mode: str = "nearest"
    transform: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


def _positions(rule: Rule, size: Any, out: Any, scale: Any, start: float, end: float) -> Any:
    """The position of each output element among the inputs, float32 [out]."""
    index: Any = torch.arange(out, dtype=torch.float32)
    kind = rule.transform
    if kind == "half_pixel":
        return (index + 0.5) / scale - 0.5
    if kind == "half_pixel_symmetric":
        exact = size * scale  # the output's length before it was rounded down
        centre, offset = size / 2, out / exact
        return centre * (1 - offset) + (index + 0.5) / scale - 0.5
    if kind == "pytorch_half_pixel":
        return (index + 0.5) / scale - 0.5 if _more_than_one(out) else torch.zeros_like(index)
    if kind == "align_corners":
        exact = size * scale  # not rounded down
        return index * ((size - 1) / (exact - 1)) if _more_than_one(out) else torch.zeros_like(index)
    if kind == "asymmetric":
        return index / scale
    if kind == "tf_half_pixel_for_nn":
        return (index + 0.5) / scale
    if kind == "tf_crop_and_resize":
        if _more_than_one(out):
            return start * (size - 1) + index * ((end - start) * (size - 1) / (out - 1))
        return torch.full_like(index, 0.5 * (start + end)) * (size - 1)
    raise OnnxError(f"unknown coordinate_transformation_mode {kind!r}")


def _more_than_one(out: Any) -> bool:
    return bool(out > 1)


def _nearest(rule: Rule, position: Tensor) -> Tensor:
    if rule.nearest == "round_prefer_floor":
        return torch.ceil(position - 0.5)
    if rule.nearest == "round_prefer_ceil":
        return torch.floor(position + 0.5)
    if rule.nearest == "floor":
        return torch.floor(position)
    if rule.nearest == "ceil":
        return torch.ceil(position)
    raise OnnxError(f"unknown nearest_mode {rule.nearest!r}")


def _kernel(rule: Rule, distance: Tensor) -> Tensor:
    """Weight of an input element at a distance."""
    d = torch.abs(distance)
    if rule.mode == "linear":
        return torch.clamp(1 - d, min=0)
    a = rule.cubic
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


def _along(x: Tensor, axis: int, rule: Rule, out: Any, scale: Any, start: float, end: float) -> Tensor:
    """Resize one axis."""
    size = x.shape[axis]
    position = _positions(rule, size, out, scale, start, end)
    if rule.mode == "nearest":
        where = torch.clamp(_nearest(rule, position), min=0, max=size - 1).to(torch.int64)
        return _outside(torch.index_select(x, axis, where), axis, rule, position, size)
    reach = 1 if rule.mode == "linear" else 2
    stretch: Any = 1.0
    if rule.antialias and not isinstance(scale, SYMBOLIC) and scale < 1:
        stretch = float(scale)
    elif rule.antialias and isinstance(scale, SYMBOLIC):
        raise OnnxError(
            "Resize with antialias and a scale that depends on sizes", fix="fix the model's sizes"
        )
    taps = math.ceil(reach / stretch)
    base = torch.floor(position)
    wide = position.dtype if x.dtype != torch.float64 else torch.float64
    total: Any = None
    weights, places = [], []
    for tap in range(1 - taps, taps + 1):
        place = base + tap
        weight = _kernel(rule, (place - position) * stretch)
        if rule.exclude_outside:
            weight = torch.where((place >= 0) & (place <= size - 1), weight, torch.zeros_like(weight))
        weights.append(weight)
        places.append(torch.clamp(place, min=0, max=size - 1).to(torch.int64))
        total = weight if total is None else total + weight
    shape = [-1 if d == axis else 1 for d in range(x.dim())]
    found: Any = None
    for weight, place in zip(weights, places, strict=True):
        if rule.exclude_outside or rule.antialias:
            weight = weight / total
        part = torch.index_select(x, axis, place).to(wide) * weight.to(wide).reshape(shape)
        found = part if found is None else found + part
    return _outside(found, axis, rule, position, size)


def _outside(found: Tensor, axis: int, rule: Rule, position: Tensor, size: Any) -> Tensor:
    if rule.transform != "tf_crop_and_resize":
        return found
    inside = (position >= 0) & (position <= size - 1)
    return torch.where(
        inside.reshape([-1 if d == axis else 1 for d in range(found.dim())]), found, rule.extrapolation
    )


def _rounded(found: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point or found.dtype == dtype:
        return found.to(dtype)
    info = torch.iinfo(dtype)
    return torch.clamp(torch.round(found), info.min, info.max).to(dtype)


def resized(
    x: Tensor, axes: list[int], sizes: list[Any], scales: list[Any], rule: Rule, roi: list[float] | None
) -> Tensor:
    """Interpolate to `sizes` along `axes`."""
    quick = _by_torch(x, axes, sizes, scales, rule)
    if quick is not None:
        return quick
    dtype = x.dtype
    found = x
    if rule.mode != "nearest" and dtype in (torch.float16, torch.bfloat16):
        found = x.float()
    for number, axis in enumerate(axes):
        same = _same(sizes[number], x.shape[axis])
        start, end = (roi[number], roi[len(axes) + number]) if roi else (0.0, 1.0)
        if same and rule.transform != "tf_crop_and_resize" and _is_one(scales[number]):
            continue
        found = _along(found, axis, rule, sizes[number], scales[number], start, end)
    return _rounded(found, dtype)


def _same(size: Any, other: Any) -> bool:
    """Whether two sizes are equal for all sizes of a call."""
    return size is other or statically_known_true(size == other)


def _is_one(scale: Any) -> bool:
    return not isinstance(scale, SYMBOLIC) and scale == 1


def _by_torch(x: Tensor, axes: list[int], sizes: list[Any], scales: list[Any], rule: Rule) -> Tensor | None:
    """Use torch's kernel if it gives the same result: the last axes of a batch, and exact scales."""
    changed = [i for i, axis in enumerate(axes) if not (_is_one(scales[i]) and axis < 2)]
    spatial = [axes[i] for i in changed]
    if (
        x.dim() != 4
        or spatial != [2, 3]
        or not x.dtype.is_floating_point
        or rule.antialias
        or rule.exclude_outside
    ):
        return None
    target = [sizes[i] for i in changed]
    factors = [scales[i] for i in changed]
    if rule.mode == "nearest":
        whole = all(type(f) in (int, float) and f == int(f) and f >= 1 for f in factors)
        usual = (rule.transform, rule.nearest) in (
            ("asymmetric", "floor"),
            ("half_pixel", "round_prefer_floor"),
            ("half_pixel", "round_prefer_ceil"),
        )
        return F.interpolate(x, target, mode="nearest") if whole and usual else None
    exact = all(_exact(x.shape[axis], t, f) for axis, t, f in zip(spatial, target, factors, strict=True))
    if rule.transform not in ("half_pixel", "pytorch_half_pixel", "align_corners") or not exact:
        return None
    if rule.transform != "half_pixel" and not all(type(t) is int and t > 1 for t in target):
        return None
    corners = rule.transform == "align_corners"
    if rule.mode == "linear":
        return F.interpolate(x, target, mode="bilinear", align_corners=corners)
    return F.interpolate(x, target, mode="bicubic", align_corners=corners) if rule.cubic == -0.75 else None


def _exact(size: Any, target: Any, factor: Any) -> bool:
    if factor is None or isinstance(factor, SYMBOLIC):
        return True  # made from the sizes
    if isinstance(factor, float) and factor == int(factor):
        return True
    return type(size) is int and type(target) is int and abs(size * factor - target) < 1e-6 * target


def _factor(out: Any, size: Any) -> Any:
    """The scale that sizes imply."""
    return out / size


def _scaled(size: Any, scale: Any) -> Any:
    """The output size of a scale, rounded down."""
    if isinstance(scale, float) and scale == int(scale):
        return size * int(scale)
    if isinstance(size, SYMBOLIC) or isinstance(scale, SYMBOLIC):
        return whole(size * scale)
    return (
        math.floor(size * scale + 1e-9)
        if abs(size * scale - round(size * scale)) < 1e-6
        else math.floor(size * scale)
    )


def _kept(policy: str, x: Tensor, axes: list[int], sizes: list[Any]) -> tuple[list[Any], list[Any]]:
    """Sizes and scales with one factor for all axes."""
    factors = [_factor(size, x.shape[axis]) for axis, size in zip(axes, sizes, strict=True)]
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(x.shape[axis] * factor + 0.5) for axis in axes], [factor] * len(axes)


@op("Resize", since=11)
def resize(
    x: Tensor,
    roi: Numbers | None = None,
    scales: Numbers | None = None,
    sizes: Numbers | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    rule = Rule(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(exclude_outside),
        bool(antialias),
        extrapolation_value,
    )
    if mode not in ("nearest", "linear", "cubic"):
        raise OnnxError(f"unknown mode {mode!r} of Resize")
    wanted = axes_of(axes, x.dim()) if axes is not None else list(range(x.dim()))
    region = roi.list() if roi is not None and roi.array.size else None
    if sizes is not None and sizes.array.size:
        target = sizes.list()
        if keep_aspect_ratio_policy == "stretch":
            factors = [
                1.0 if _same(size, x.shape[axis]) else _factor(size, x.shape[axis])
                for axis, size in zip(wanted, target, strict=True)
            ]
        else:
            target, factors = _kept(keep_aspect_ratio_policy, x, wanted, target)
    elif scales is not None and scales.array.size:
        factors = scales.list()
        if coordinate_transformation_mode == "tf_crop_and_resize" and region is not None:
            count = len(wanted)
            target = [
                math.floor(x.shape[axis] * (region[count + i] - region[i]) * factors[i])
                for i, axis in enumerate(wanted)
            ]
        else:
            target = [_scaled(x.shape[axis], factor) for axis, factor in zip(wanted, factors, strict=True)]
    else:
        raise OnnxError("Resize needs scales or sizes")
    return resized(x, wanted, target, factors, rule, region)


@op("Resize", since=10)
def resize_10(x: Tensor, scales: Numbers, *, mode: str = "nearest") -> Tensor:
    factors = scales.list()
    target = [_scaled(size, factor) for size, factor in zip(x.shape, factors, strict=True)]
    return resized(x, list(range(x.dim())), target, factors, Rule(mode, "asymmetric", "floor"), None)


@op("Upsample", since=9)
def upsample(x: Tensor, scales: Numbers, *, mode: str = "nearest") -> Tensor:
    return resize_10(x, scales, mode={"bilinear": "linear"}.get(mode, mode))


@op("Upsample", since=7)
def upsample_7(x: Tensor, *, mode: str = "nearest", scales: Any) -> Tensor:
    from staticrt.interop.onnx.numbers import objects

    return upsample(x, Numbers(objects(list(scales)), torch.float32), mode=mode)
