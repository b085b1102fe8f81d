"""Fake rules of Fourier transforms, and of complex numbers made of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import (
    agree,
    contiguous_strides,
    cpu_kernels,
    is_contiguous,
    new,
    reread,
    rule,
)
from staticrt.shapes.size_checks import check as _check

aten = torch.ops.aten

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {complex_: real for real, complex_ in _COMPLEX.items()}


def _lies_row_major(x: torch.Tensor, dims: Sequence[Any]) -> bool:
    """Whether a transform's result is row-major: the input is, and the transformed dimensions are the last, in order."""
    rank = x.dim()
    if (
        x.device.type not in cpu_kernels
        or not dims
        or not all(type(d) is int and -rank <= d < rank for d in dims)
    ):
        return False
    found = [d % rank for d in dims]
    if found != list(range(rank - len(found), rank)) or not is_contiguous(x) or x.is_conj() or x.is_neg():
        return False
    for size in x.shape:  # of nothing there is no transform
        _check(size > 0)
    return True


@rule(aten._fft_c2c.default)
def _complex_to_complex(mode: Any, x: torch.Tensor, dim: Sequence[int], scale: int, forward: bool) -> Any:
    return new(mode, x.shape, x) if x.dtype in _REAL and _lies_row_major(x, dim) else None


@rule(aten._fft_r2c.default)
def _real_to_complex(mode: Any, x: torch.Tensor, dim: Sequence[int], scale: int, onesided: bool) -> Any:
    if x.dtype not in _COMPLEX or not _lies_row_major(x, dim):
        return None
    sizes = list(x.shape)
    if onesided:
        sizes[-1] = sizes[-1] // 2 + 1
    return new(mode, sizes, x, dtype=_COMPLEX[x.dtype])


@rule(aten._fft_c2r.default)
def _complex_to_real(mode: Any, x: torch.Tensor, dim: Sequence[int], scale: int, last_size: Any) -> Any:
    if x.dtype not in _REAL or not _lies_row_major(x, dim):
        return None
    _check(last_size > 0)
    return new(mode, [*x.shape[:-1], last_size], x, dtype=_REAL[x.dtype])


@rule(aten.polar.default, aten.complex.default)
def _complex_of_two(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype != b.dtype or a.dtype not in _COMPLEX or a.dim() != b.dim():
        return None
    if not all(map(agree, a.shape, b.shape)) or not is_contiguous(a) or not is_contiguous(b):
        return None
    return new(mode, a.shape, a, dtype=_COMPLEX[a.dtype])


@rule(aten.view_as_real.default)
def _as_real(mode: Any, x: torch.Tensor) -> Any:
    if x.dtype not in _REAL or x.is_conj() or x.is_neg():
        return None
    strides = [*(2 * stride for stride in x.stride()), 1]
    return reread(mode, x, _REAL[x.dtype], [*x.shape, 2], strides, 2 * x.storage_offset())


@rule(aten.view_as_complex.default)
def _as_complex(mode: Any, x: torch.Tensor) -> Any:
    if (
        x.dtype not in _COMPLEX
        or x.is_neg()
        or not x.dim()
        or not is_contiguous(x)
        or not agree(x.shape[-1], 2)
    ):
        return None
    offset = x.storage_offset()
    if not isinstance(offset, int) or offset % 2:
        return None
    sizes = x.shape[:-1]
    return reread(mode, x, _COMPLEX[x.dtype], sizes, contiguous_strides(mode, sizes), offset // 2)
