"""Higher-order operators: calls with graphs as arguments.

They are declared as pure as their bodies, which callers check too (`passes/effects.py`).
Their results may be values that the bodies were given, so they have no verified aliases.
"""

from __future__ import annotations

from staticrt.ops.registry import register_ops

register_ops(
    "control_flow",
    """
    cond while_loop scan map_impl associative_scan
    """,
    namespace="higher_order",
)
register_ops(
    "control_flow",
    """
    wrap_with_set_grad_enabled wrap_with_autocast auto_functionalized auto_functionalized_v2 with_effects
    invoke_subgraph flex_attention run_const_graph out_dtype strict_mode
    """,
    namespace="higher_order",
    pure=False,
)
