"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.interop.onnx.arguments import Ints, expect
from staticrt.interop.onnx.numbers import Numbers, Tensor
from staticrt.interop.onnx.operators.conv import spatial
from staticrt.interop.onnx.registry import Call, op
from staticrt.interop.onnx.windows import count_windows, padded, pads_of

_MAX: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Windows:
    """The windows of one node, of its attributes: sizes for torch's operators, and padding that these cannot express."""

    def __init__(
        self,
        x: Tensor,
        *,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        dilations: Ints | None = None,
        kernel_shape: Ints,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> None:
        count = len(kernel_shape)
        self.kernel = list(kernel_shape)
        self.stride = list(strides or [1] * count)
        self.dilation = list(dilations or [1] * count)
        self.ceil = ceil_mode
        self.sizes = list(x.shape[2:])
        expect(
            len(self.kernel) == len(self.stride) == len(self.dilation) == len(self.sizes),
            f"kernel_shape {self.kernel}, strides {self.stride} and dilations {self.dilation} on {len(self.sizes)} "
            "spatial dimensions",
        )
        numbers = [*self.kernel, *self.stride, *self.dilation]
        expect(
            all(number > 0 for number in numbers),
            f"kernel_shape {self.kernel}, strides {self.stride} and dilations {self.dilation} are positive",
        )
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        expect(
            pads is None or all(0 <= p < k for p, k in zip(pads, reach * 2, strict=True)),
            f"pads {None if pads is None else list(pads)} reach beyond windows of {reach}",
        )
        self.before, self.after = pads_of(
            auto_pad, pads, x.shape[2:], self.kernel, self.stride, self.dilation
        )
        self.native = self.before == self.after and all(
            type(p) is int and p <= k // 2 for p, k in zip(self.before, self.kernel, strict=True)
        )

    def grown(self, x: Tensor, value: float) -> Tensor:
        """`x` padded so that the windows fit without rounding up."""
        behind = [after + self._windows(i)[1] for i, after in enumerate(self.after)]
        return padded(x, self.before, behind, value)

    def cut(self, found: Tensor) -> Tensor:
        """The result without windows that start in the padding."""
        for i in range(len(self.sizes)):
            found = found.narrow(2 + i, 0, self._windows(i)[0])
        return found

    def _windows(self, i: int) -> tuple[Any, Any]:
        """Number of windows along a spatial dimension, and the extra padding that the last one needs."""
        return count_windows(
            self.sizes[i],
            self.kernel[i],
            self.stride[i],
            self.dilation[i],
            self.before[i],
            self.after[i],
            self.ceil,
        )

    def sums(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Sum over each window of `x`, padded already."""
        count = len(self.kernel)
        flat = x.reshape([-1, 1, *x.shape[2:]])
        ones = torch.ones([1, 1, *self.kernel], dtype=x.dtype, device=x.device)
        found: Tensor = _CONV[count](flat, ones, None, self.stride, 0, self.dilation)
        return self.cut(found.reshape([*x.shape[:2], *found.shape[2:]]))


@op("MaxPool", like=Windows)
def max_pool(x: Tensor, *, storage_order: int = 0, call: Call, **attributes: Any) -> Any:
    count = spatial(x, _MAX)
    dtype = x.dtype
    if not dtype.is_floating_point:
        x = x.double()
    windows = Windows(x, **attributes)
    indices = len(call.outputs) > 1 and bool(call.outputs[1])
    pool = _MAX[count]
    if windows.native:
        args = (x, windows.kernel, windows.stride, windows.before, windows.dilation, bool(windows.ceil))
        found = pool(*args, return_indices=indices)
    else:
        grown = windows.grown(x, -float("inf"))
        found = pool(
            grown, windows.kernel, windows.stride, 0, windows.dilation, False, return_indices=indices
        )
        if not indices:
            found = windows.cut(found)
    if not indices:
        return found.to(dtype)
    values, where = found
    if not windows.native:
        values, where = windows.cut(values), windows.cut(where)
        where = _unpadded(where, list(grown.shape[2:]), windows.before, list(x.shape[2:]))
    return values.to(dtype), _global(where, x, storage_order)


def _unpadded(where: Tensor, grown: list[Any], before: list[Any], sizes: list[Any]) -> Tensor:
    """Flat positions in a padded plane as flat positions in the plane."""
    found: Any = 0
    stride: Any = 1
    for size, first, old in zip(reversed(grown), reversed(before), reversed(sizes), strict=True):
        found = found + (where % size - first) * stride
        stride = stride * old
        where = where // size
    return torch.as_tensor(found)


def _global(where: Tensor, x: Tensor, storage_order: int) -> Tensor:
    """Positions in the whole tensor; in column-major planes with storage order 1."""
    plane: Any = math.prod(x.shape[2:])
    if storage_order:
        found: Any = 0
        weights: list[Any] = [1]
        for size in x.shape[2:-1]:
            weights.append(weights[-1] * size)
        for size, weight in zip(reversed(x.shape[2:]), reversed(weights), strict=True):
            found = found + (where % size) * weight
            where = where // size
        where = found
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device) * plane
    return torch.add(where, planes.reshape([x.shape[0], x.shape[1], *[1] * (x.dim() - 2)]))


@op("AveragePool", like=Windows)
def average_pool(x: Tensor, *, count_include_pad: int = 0, **attributes: Any) -> Tensor:
    count = spatial(x, _AVERAGE)
    windows = Windows(x, **attributes)
    if windows.native and not windows.ceil and set(windows.dilation) == {1}:
        found: Tensor = _AVERAGE[count](
            x, windows.kernel, windows.stride, windows.before, False, bool(count_include_pad)
        )
        return found
    ones = torch.ones_like(x[:1, :1])
    if count_include_pad:
        ones = padded(ones, windows.before, windows.after, 1.0)
        behind = [g - s for g, s in zip(windows.grown(x, 0.0).shape[2:], ones.shape[2:], strict=True)]
        weights = windows.sums(padded(ones, [0] * count, behind))
    else:
        weights = windows.sums(windows.grown(ones, 0.0))
    return windows.sums(windows.grown(x, 0.0)) / weights


@op("LpPool", since=2, like=Windows)
def lp_pool(x: Tensor, *, p: float = 2, **attributes: Any) -> Tensor:
    spatial(x, _AVERAGE)
    windows = Windows(x, **attributes)
    return windows.sums(windows.grown(torch.abs(x) ** p, 0.0)) ** (1 / p)


@op("LpPool")
def lp_pool_1(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: Ints,
    p: float = 2.0,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    return lp_pool(x, p=p, auto_pad=auto_pad, kernel_shape=kernel_shape, pads=pads, strides=strides)


def _planes(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


op("GlobalAveragePool")(lambda x: torch.mean(x, _planes(x), keepdim=True))
op("GlobalMaxPool")(lambda x: torch.amax(x, _planes(x), keepdim=True))
op("GlobalLpPool")(lambda x, *, p=2: torch.sum(torch.abs(x) ** p, _planes(x), keepdim=True) ** (1 / p))


@op("MaxUnpool", since=9)
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Numbers | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    count = len(kernel_shape)
    stride, around = list(strides or [1] * count), list(pads or [0] * 2 * count)
    sizes: list[Any] = list(x.shape[:2])
    for i in range(count):
        sizes.append((x.shape[2 + i] - 1) * stride[i] - around[i] - around[count + i] + kernel_shape[i])
    flat = torch.zeros([math.prod(sizes)], dtype=x.dtype, device=x.device)
    found = flat.scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(sizes)
    if output_shape is None:
        return found
    # The indices count in the inferred shape; a larger one adds zeros behind.
    wanted = output_shape.list()[2:]
    return padded(found, [0] * count, [want - have for want, have in zip(wanted, sizes[2:], strict=True)])
