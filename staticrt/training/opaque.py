"""Inputs that a graph hands through without looking at them: what tensors of a class of their own are put together of.

AOTAutograd gives graphs the parts of such tensors: plain tensors, and beside them a device mesh (DTensor) or the
symbol of a ragged size (nested tensors), which a Program does not take. They go around it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_TAKEN = (torch.Tensor, int, float, complex, bool, str, type(None), torch.dtype, torch.device)


class Opaque:
    """Which inputs of a graph may have to go around its Program.

    Args:
        graph: with fake values in `meta["val"]`.

    Attributes:
        inputs: positions of inputs that are no tensors.
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
        """Put a number in the place of each opaque input.

        Returns:
            Whether the graph reads any of them, so that no Program can run it (`inputs` is unchanged then), and
            what stands at which output.
        """
        found = [i for i in self.inputs if not isinstance(inputs[i], _TAKEN)]
        if not self._read.isdisjoint(found):
            return True, []
        passed = [(at, inputs[i]) for i in found for at in self._to[i]]
        for i in found:
            inputs[i] = 0
        return False, passed
