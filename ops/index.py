"""Reading and writing by index or mask; scatters of values into a copy."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "index",
    """
    gather index_select index _unsafe_index _unsafe_masked_index take take_along_dim masked_select nonzero
    nonzero_numpy nonzero_static argwhere select_backward slice_backward index_select_backward
    gather_backward _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    value_selecting_reduction_backward masked_select_backward one_hot
    """,
    cost=Cost.MEMORY,
)
register_ops(
    "index",
    """
    index_put _index_put_impl _unsafe_index_put index_copy index_fill scatter put masked_scatter
    masked_scatter_backward select_scatter slice_scatter diagonal_scatter as_strided_scatter index_add
    index_reduce scatter_add scatter_reduce _unsafe_masked_index_put_accumulate
    """,
    cost=Cost.MEMORY,
)
