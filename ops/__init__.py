"""Facts of operators, declared once: aliases, writes, cost, fusability.

`facts(target)` answers, `register_op` declares; each family of ops has a file.
"""

from __future__ import annotations

import importlib

from staticrt.ops.facts import Alias, Cost, OpFacts
from staticrt.ops.registry import draws, facts, facts_of_call, op_name, register_op, register_ops

FAMILIES = (
    "pointwise", "activation", "reduction", "matmul", "norm", "conv", "pool", "index", "view", "copy",
    "creation", "random", "attention", "embedding", "linalg", "loss", "fft", "scalar", "effects",
    "control_flow", "quantized", "collectives", "other",
)  # fmt: skip
for _family in FAMILIES:
    importlib.import_module(f"staticrt.ops.{_family}")

__all__ = [
    "FAMILIES", "Alias", "Cost", "OpFacts", "draws", "facts", "facts_of_call", "op_name", "register_op",
    "register_ops",
]  # fmt: skip
