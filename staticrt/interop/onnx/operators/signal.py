"""Fourier transforms, cache updates and n-grams."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, axis_of
from staticrt.interop.onnx.numbers import Numbers, Tensor
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.strings import Vocabulary
from staticrt.interop.onnx.types import dtype_of


def _fourier(x: Tensor, length: Any, axis: int, inverse: int, onesided: int) -> Tensor:
    """x: [..., 1] real or [..., 2] complex; the result alike."""
    axis = axis_of(axis, x.dim())
    if axis == x.dim() - 1:
        raise OnnxError("DFT over the dimension of real and imaginary parts")
    value = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.squeeze(-1)
    if onesided and inverse:
        real: Tensor = torch.fft.irfft(value, length, axis)
        return real.unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(value, length, axis))
    transform = torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(transform(value, length, axis))


@op("DFT", since=20)
def dft(
    x: Tensor,
    length: Numbers | None = None,
    axis: Numbers | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    return _fourier(
        x, None if length is None else length.item(), -2 if axis is None else axis.item(), inverse, onesided
    )


@op("DFT", since=17)
def dft_17(
    x: Tensor, length: Numbers | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return _fourier(x, None if length is None else length.item(), axis, inverse, onesided)


@op("STFT", since=17)
def stft(
    signal: Tensor,
    step: Numbers,
    window: Tensor | None = None,
    length: Numbers | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """Frames of [batch, time, 1 or 2] as [batch, frames, bins, 2]."""
    if length is None and window is None:
        raise OnnxError("STFT needs a window or a frame length")
    size = length.item() if length is not None else window.shape[0]  # type: ignore[union-attr]
    frames = signal.unfold(1, size, step.item())  # [batch, frames, 1 or 2, size]
    if window is not None:
        frames = frames * window
    frames = frames.transpose(2, 3)
    return _fourier(frames, None, 2, 0, int(bool(onesided) and frames.shape[-1] == 1))


@op("BitCast", since=26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    dtype = dtype_of(to)
    if dtype.itemsize != x.dtype.itemsize:
        raise OnnxError(f"BitCast from {x.dtype} to {dtype}, which has another size")
    return x.view(dtype)


@op("TensorScatter", since=24)
def tensor_scatter(
    cache: Tensor, update: Tensor, start: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """Write rows of `update` into a cache from each batch's own position on."""
    axis = axis_of(axis, cache.dim())
    begin = torch.zeros([cache.shape[0]], dtype=torch.int64) if start is None else start.to(torch.int64)
    rows = begin.unsqueeze(1) + torch.arange(update.shape[axis])
    if mode == "circular":
        rows = torch.remainder(rows, cache.shape[axis])
    elif mode != "linear":
        raise OnnxError(f"unknown mode {mode!r} of TensorScatter")
    shape: list[Any] = [1] * cache.dim()
    shape[0], shape[axis] = update.shape[0], update.shape[axis]
    return torch.scatter(cache, axis, rows.reshape(shape).expand(update.shape), update)


@dataclasses.dataclass(eq=False)
class _Grams:
    """The n-grams that TfIdfVectorizer counts.

    Args:
        groups: per length of grams, int64 [grams, length] and the column that each is counted in.
        skips: elements that may be left out between two of a gram.
        factor: per column, of the count; with `presence`, of whether the n-gram occurs.
    """

    groups: list[tuple[int, Tensor, Tensor]]
    skips: int
    columns: int
    factor: Tensor | None
    presence: bool


def _grams(
    vocabulary: Vocabulary,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> _Grams:
    pool = vocabulary.codes(pool_strings) if pool_strings else torch.tensor(pool_int64s, dtype=torch.int64)
    columns = torch.tensor(ngram_indexes, dtype=torch.int64)
    groups, place = [], 0
    ends = [*ngram_counts[1:], len(pool)]
    for number, (first, end) in enumerate(zip(ngram_counts, ends, strict=True)):
        length = number + 1
        grams = pool[first:end].reshape(-1, length)
        if min_gram_length <= length <= max_gram_length and len(grams):
            groups.append((length, grams, columns[place : place + len(grams)]))
        place += len(grams)
    factor = None
    if weights and mode in ("IDF", "TFIDF"):
        factor = torch.ones([max(ngram_indexes) + 1])
        factor[columns] = torch.tensor(weights, dtype=torch.float32)
    return _Grams(groups, max_skip_count, max(ngram_indexes) + 1, factor, mode == "IDF")


@op("TfIdfVectorizer", since=9, prepare=_grams, strings="compares")
def tf_idf(x: Tensor, *, prepared: _Grams) -> Tensor:
    rows = x.unsqueeze(0) if x.dim() == 1 else x
    counts = torch.zeros([rows.shape[0], prepared.columns], dtype=torch.float32)
    for length, grams, columns in prepared.groups:
        for skip in range(1 if length == 1 else prepared.skips + 1):
            reach = (length - 1) * (skip + 1) + 1
            if rows.shape[1] < reach:
                continue
            windows = rows.unfold(1, reach, 1)[:, :, :: skip + 1]
            same = (windows.unsqueeze(2) == grams).all(-1).sum(1)
            counts = counts.index_add(1, columns, same.to(torch.float32))
    found = (counts > 0).to(torch.float32) if prepared.presence else counts
    if prepared.factor is not None:
        found = found * prepared.factor
    return found[0] if x.dim() == 1 else found
