"""The reference accelerator: subgraphs run operator by operator in eager PyTorch.

It speeds nothing up. It takes what a real accelerator would take, on any device, so that tests of partitioning,
compilation, fallback and reports need no other compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


class Reference:
    """Supports every operator, or only those in `ops`.

    Args:
        ops: names of operators, for example "aten.relu.default".
    """

    name = "reference"
    min_nodes = 1

    def __init__(self, ops: frozenset[str] | None = None) -> None:
        self._ops = ops

    def is_available(self) -> tuple[bool, str]:
        return True, f"eager PyTorch {torch.__version__}"

    def supports(self, node: fx.Node) -> bool:
        return self._ops is None or str(node.target) in self._ops

    def compile(
        self, program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        run: Callable[..., Any] = program.module()
        return run
