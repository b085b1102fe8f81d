"""Opaque inputs: components of tensor subclasses that a graph passes through without reading them.

AOTAutograd flattens a tensor subclass into plain tensors and other objects, such as the device mesh of a DTensor or the
symbol of a nested tensor's ragged size. A Program cannot take such objects, so they bypass it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_TAKEN = (torch.Tensor, int, float, complex, bool, str, type(None), torch.dtype, torch.device)


class Opaque:
    """The inputs of a graph that may have to bypass its Program.

    Args:
        graph: a graph with fake values in `meta["val"]`.

    Attributes:
        inputs: positions of the inputs that are not tensors.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        outputs = graph.graph.output_node().args[0]
        placeholders = graph.graph.find_nodes(op="placeholder")
        self.inputs = tuple(
            i for i, node in enumerate(placeholders) if not isinstance(node.meta.get("val"), torch.Tensor)
        )
        self._to = {
            i: [at for at, item in enumerate(outputs) if item is placeholders[i]]  # type: ignore[arg-type]
            for i in self.inputs
        }
        self._read = {i for i in self.inputs if any(user.op != "output" for user in placeholders[i].users)}

    def take_out(self, inputs: list[Any]) -> tuple[bool, list[tuple[int, Any]]]:
        """Replace each opaque input by a number.

        Returns:
            Whether the graph reads any of them, so that no Program can run it (`inputs` is unchanged then), and
            pairs (output, opaque input) for outputs that are opaque inputs.
        """
        found = [i for i in self.inputs if not isinstance(inputs[i], _TAKEN)]
        if not self._read.isdisjoint(found):
            return True, []
        passed = [(at, inputs[i]) for i in found for at in self._to[i]]
        for i in found:
            inputs[i] = 0
        return False, passed
