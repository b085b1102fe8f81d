"""Checks of sizes that may be symbols of this project, symbols of torch, or plain numbers."""

from __future__ import annotations

from typing import Any

import torch

from staticrt.shapes.size_env import SizeEnv
from staticrt.shapes.size_nodes import Node


def env_of(value: Any) -> SizeEnv | None:
    """The environment of a symbolic size of this project; None for others."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, Node) else None


def statically_known_true(condition: Any) -> bool:
    """Whether a condition is known to hold for all sizes. Adds no guard."""
    if isinstance(condition, bool):
        return condition
    if env_of(condition) is not None:
        return condition.node.condition.known() is True
    from torch.fx.experimental import symbolic_shapes

    return bool(symbolic_shapes.statically_known_true(condition))


def check(condition: Any) -> None:
    """`torch._check`: guard on a condition.

    Raises:
        RuntimeError: it does not hold.
    """
    if not isinstance(condition, bool) and env_of(condition) is None:
        torch._check(condition)  # type: ignore[no-untyped-call]
    elif not condition:
        raise RuntimeError(f"sizes do not fit: {condition} does not hold")
