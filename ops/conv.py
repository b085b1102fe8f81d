"""Convolutions, their transposes and the unfolding they are built on."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "conv",
    """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution
    _convolution_mode convolution_overrideable conv_tbc conv_tbc_backward convolution_backward
    _convolution_double_backward thnn_conv2d _slow_conv2d_forward _slow_conv2d_backward slow_conv3d
    slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d
    slow_conv_transpose3d _conv_depthwise2d conv_depthwise3d mkldnn_convolution
    _nnpack_spatial_convolution
    """,
    cost=Cost.CONV,
)
register_ops("conv", "im2col col2im", cost=Cost.MEMORY)
