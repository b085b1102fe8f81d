"""Layouts that a traced graph takes for granted.

Eager makes the arguments of group normalisation and of its backward row-major, or channels last, where they are neither:
torch's kernels refuse others. AOTAutograd decides that by the strides of fake tensors, and those of dimensions of size 1
may differ from the real tensor's, whose kernel looks at them (torch 2.11 to 2.13: a view of a transposed matrix as an
image, batch 1). Batch norms make row-major results, or channels last, of arguments in any layout; the trace takes them to keep it.
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
_BATCH_NORMS = {
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm_backward.default,
}


def settle_layouts(graph: fx.GraphModule) -> None:
    """Make a graph, in place, right for tensors that may not have the layout that the trace saw.

    What has to have it is copied: into that layout whatever the original's is, as later views were chosen by it.
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
    if is_laid_out_otherwise(graph):
        for node in graph.graph.nodes:
            if node.target in (aten.view.default, aten._unsafe_view.default):
                node.target = aten.reshape.default
    graph.recompile()


def is_laid_out_otherwise(graph: fx.GraphModule) -> bool:
    """Whether the trace of a graph takes some result of a batch norm to have another layout than it has."""
    return any(_is_laid_out_otherwise(node) for node in graph.graph.nodes)


def _is_laid_out_otherwise(node: fx.Node) -> bool:
    """Whether a batch norm's result lies in memory as its argument in the trace, and row-major in eager.

    It does for `norm(x.transpose(1, 2))`. Views of it that the trace found possible may need a copy.
    """
    if node.target not in _BATCH_NORMS:
        return False
    fake = node.meta["val"][0]
    if not isinstance(fake, torch.Tensor) or fake.is_contiguous():
        return False
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return fake.dim() not in formats or not fake.is_contiguous(memory_format=formats[fake.dim()])
