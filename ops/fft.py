"""Fourier transforms."""

from __future__ import annotations

from staticrt.ops.registry import register_ops

register_ops(
    "fft",
    """
    _fft_c2c _fft_c2r _fft_r2c fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2
    fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
    stft istft
    """,
)
