"""Pooling, resampling and grid sampling."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "pool",
    """
    max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_unpool2d
    max_unpool3d fractional_max_pool2d fractional_max_pool3d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    __upsample_nearest
    """,
    cost=Cost.REDUCTION,
)
register_ops(
    "pool",
    """
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
    upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa
    __upsample_bilinear __upsample __interpolate grid_sampler grid_sampler_2d grid_sampler_3d
    _grid_sampler_2d_cpu_fallback affine_grid_generator avg_pool2d_backward avg_pool3d_backward
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward
    fractional_max_pool2d_backward fractional_max_pool3d_backward upsample_nearest1d_backward
    upsample_nearest2d_backward upsample_nearest3d_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward upsample_linear1d_backward
    upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward
    _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward grid_sampler_2d_backward
    grid_sampler_3d_backward _grid_sampler_2d_cpu_fallback_backward affine_grid_generator_backward
    """,
    cost=Cost.REDUCTION,
)
