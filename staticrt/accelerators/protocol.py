"""What an accelerator is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx


class Accelerator(Protocol):
    """Compiles islands. One object serves all islands of a captured graph.

    A class may also have `min_nodes` (islands with fewer nodes stay in the runtime; 1 by default) and `fix` (what to
    do when it is not available).
    """

    name: str

    def is_available(self) -> tuple[bool, str]:
        """Whether it can be used here; the versions found, or what is missing."""
        ...

    def supports(self, node: fx.Node) -> bool:
        """Whether it takes this node: a functional ATen call with one tensor result in `meta["val"]`."""
        ...

    def compile(
        self, program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        """Compile an island for inputs of these shapes.

        Args:
            program: takes `inputs` positionally and returns a tuple of tensors. It never writes into them.

        Returns:
            A callable with the same arguments and results.

        Raises:
            Exception: it cannot; the island then runs operator by operator, and `explain()` says why.
        """
        ...
