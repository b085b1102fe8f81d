"""Reading and writing by index or mask; scatters of values into a copy."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, Cost
from staticrt.ops.out_rules import Indexed
from staticrt.ops.registry import register_op

READS = [
    "index",
    "_unsafe_index",
    "_unsafe_masked_index",
    "take",
    "take_along_dim",
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "nonzero_static",
    "argwhere",
    "select_backward",
    "slice_backward",
    "index_select_backward",
    "gather_backward",
    "_convert_indices_from_coo_to_csr",
    "_convert_indices_from_csr_to_coo",
    "value_selecting_reduction_backward",
    "masked_select_backward",
    "one_hot",
]
WRITES = [
    "index_put",
    "_index_put_impl",
    "_unsafe_index_put",
    "index_copy",
    "index_fill",
    "scatter",
    "put",
    "masked_scatter",
    "masked_scatter_backward",
    "select_scatter",
    "slice_scatter",
    "diagonal_scatter",
    "as_strided_scatter",
]
# They add in an order of their own choosing.
ACCUMULATES = [
    "index_add",
    "index_reduce",
    "scatter_add",
    "scatter_reduce",
    "_unsafe_masked_index_put_accumulate",
]

for _name in READS + WRITES:
    register_op(f"aten.{_name}", family="index", cost=Cost.MEMORY)
for _name in ACCUMULATES:
    register_op(f"aten.{_name}", family="index", cost=Cost.MEMORY, tolerance=ACCUMULATED)
register_op("aten.gather", family="index", out=Indexed(whole=True), cost=Cost.MEMORY)
register_op("aten.index_select", family="index", out=Indexed(whole=False), cost=Cost.MEMORY)
