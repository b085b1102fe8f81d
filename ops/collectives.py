"""Functional collectives: every rank must run the same calls in the same order.

A call affects the other ranks, so it is never removed, merged or moved past another one, even if its result has no
reader. It returns before the bytes have arrived: until its `wait_tensor` the backend may still read the
argument and write the result, so both count as one memory up to the wait's last reader.
"""

from __future__ import annotations

from staticrt.ops.registry import register_ops

for _namespace in ("_c10d_functional", "_c10d_functional_autograd"):
    register_ops(
        "collectives",
        """
    all_reduce all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced
    reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast wait_tensor isend
    irecv batch_p2p_ops
    """,
        namespace=_namespace,
        may_alias=("input", "inputs", "tensor", "tensors"),
        pure=False,
    )
