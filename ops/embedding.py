"""Embedding look-ups and bags."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "embedding",
    """
    embedding embedding_bag _embedding_bag _embedding_bag_forward_only embedding_renorm embedding_backward
    embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward
    """,
    cost=Cost.MEMORY,
)
