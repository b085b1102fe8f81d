"""Compiled graphs that talk to other processes.

Functional collectives (`torch.distributed._functional_collectives`, DTensor, tensor parallelism) are operators of a
graph; `staticrt.ops.collectives` declares how they differ from others. Process groups are named, not held: a graph
runs wherever groups of those names exist.
"""

from __future__ import annotations

from staticrt.interop.distributed.groups import check_groups, group_names

__all__ = ["check_groups", "group_names"]
