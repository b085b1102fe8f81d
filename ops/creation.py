"""New tensors from sizes and numbers."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "creation",
    """
    zeros ones full eye arange range linspace logspace tril_indices triu_indices scalar_tensor
    bartlett_window blackman_window hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq
    new_zeros new_ones new_full _efficientzerotensor _dim_arange _shape_as_tensor
    _new_zeros_with_same_feature_meta zeros_like ones_like full_like
    """,
    cost=Cost.MEMORY,
)
# Their bytes are what the memory held: two calls differ, and a call after reuse differs from eager.
register_ops(
    "creation",
    """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided
    """,
    cost=Cost.MEMORY,
)
