"""The protocol that accelerators implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx


class Accelerator(Protocol):
    """Compiles subgraphs. One object serves all subgraphs of a traced graph.

    A class may also define `min_nodes` (subgraphs with fewer nodes stay in the runtime; default 1) and `fix` (a text
    that says how to make it available).
    """

    name: str

    def is_available(self) -> tuple[bool, str]:
        """Whether it can be used here, with the versions found or with what is missing."""
        ...

    def supports(self, node: fx.Node) -> bool:
        """Whether it takes this node: a functional ATen call with one tensor result in `meta["val"]`."""
        ...

    def compile(
        self, program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        """Compile a subgraph for inputs of these shapes.

        Args:
            program: takes `inputs` positionally and returns a tuple of tensors. It never writes into them.

        Returns:
            A callable with the same arguments and results.

        Raises:
            Exception: it cannot compile the subgraph, which then runs operator by operator, and `explain()` says why.
        """
        ...
