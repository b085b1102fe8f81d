"""Ops that act on the outside: assertions, range hints, printing, generator and grad state.

Their results, if any, are tokens. A call keeps its place although its result has no reader.
"""

from __future__ import annotations

from staticrt.ops.registry import register_ops

register_ops(
    "effects",
    """
    _assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _print manual_seed set_grad_enabled record_stream backward
    save warn _make_dep_token _linalg_check_errors _cudnn_init_dropout_state
    """,
    pure=False,
)
