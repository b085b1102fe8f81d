"""Embedding look-ups and bags."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, Cost
from staticrt.ops.out_rules import Looked
from staticrt.ops.registry import register_op

register_op("aten.embedding", family="embedding", out=Looked(), cost=Cost.MEMORY)
BAGS = [
    "embedding_bag",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "embedding_renorm",
    "embedding_backward",
    "embedding_dense_backward",
    "_embedding_bag_backward",
    "_embedding_bag_dense_backward",
    "_embedding_bag_per_sample_weights_backward",
]
for _name in BAGS:
    register_op(f"aten.{_name}", family="embedding", cost=Cost.MEMORY, tolerance=ACCUMULATED)
