"""Layouts that a traced graph takes for granted.

Eager makes the arguments of group normalisation and of its backward row-major, or channels last, where they are neither:
torch's kernels refuse others. AOTAutograd decides that by the strides of fake tensors, and those of dimensions of size 1
may differ from the real tensor's, whose kernel looks at them (torch 2.11 to 2.13: a view of a transposed matrix as an
image, batch 1).
"""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten

# What torch's kernel wants in a layout of its own: operator -> indices of arguments.
_READS = {
    aten.native_group_norm.default: (0,),
    aten.native_group_norm_backward.default: (0, 1),  # the gradient, the input
}


def settle_layouts(graph: fx.GraphModule) -> None:
    """Copy, in place of the graph, what has to have the layout that the trace saw and may not have it.

    The copies have that layout whatever the original's is, as later views were chosen by it.
    """
    for node in [node for node in graph.graph.nodes if node.target in _READS]:
        for index in _READS[node.target]:
            given = node.args[index]
            if not isinstance(given, fx.Node):
                continue
            fake = given.meta["val"]
            if not any(isinstance(size, int) and size == 1 for size in fake.shape):
                continue
            layout = torch._prims_common.suggest_memory_format(fake)
            with graph.graph.inserting_before(node):
                copy = graph.graph.call_function(aten.clone.default, (given,), {"memory_format": layout})
            copy.meta["val"] = torch.empty_like(fake, memory_format=layout)
            node.update_arg(index, copy)
    graph.recompile()
