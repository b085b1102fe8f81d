"""New tensors from sizes and numbers."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.out_rules import SameAs
from staticrt.ops.registry import register_op

FROM_SIZES = [
    "zeros",
    "ones",
    "full",
    "eye",
    "arange",
    "range",
    "linspace",
    "logspace",
    "tril_indices",
    "triu_indices",
    "scalar_tensor",
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "fft_fftfreq",
    "fft_rfftfreq",
    "new_zeros",
    "new_ones",
    "new_full",
    "_efficientzerotensor",
    "_dim_arange",
    "_shape_as_tensor",
    "_new_zeros_with_same_feature_meta",
]
LIKE = ["zeros_like", "ones_like", "full_like"]
# Their bytes are what the memory held: two calls differ, and a call after reuse differs from eager.
UNINITIALISED = ["empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"]

for _name in FROM_SIZES:
    register_op(f"aten.{_name}", family="creation", cost=Cost.MEMORY)
for _name in LIKE:
    register_op(f"aten.{_name}", family="creation", out=SameAs("self", dtype_arg="dtype"), cost=Cost.MEMORY)
for _name in UNINITIALISED:
    register_op(f"aten.{_name}", family="creation", cost=Cost.MEMORY)
