"""Functional collectives: every rank must run the same calls in the same order.

A call is an effect on the other ranks, so it is never removed, merged or moved past another one, even where nobody
reads its result. It returns before the bytes have arrived: until its `wait_tensor` the backend may still read the
argument and write the result, so both count as one memory up to the wait's last reader.
"""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op

OPS = [
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "broadcast",
    "wait_tensor",
    "isend",
    "irecv",
    "batch_p2p_ops",
]

for _namespace in ("_c10d_functional", "_c10d_functional_autograd"):
    for _name in OPS:
        register_op(
            f"{_namespace}.{_name}",
            family="collectives",
            may_alias=("input", "inputs", "tensor", "tensors"),
            pure=False,
            cost=Cost.OTHER,
        )
