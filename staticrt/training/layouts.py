"""Layouts that a traced graph takes for granted.

Eager makes the arguments of group normalisation and of its backward row-major, or channels last, where they are neither:
torch's kernels refuse others. AOTAutograd decides that by the strides of fake tensors, and those of dimensions of size 1
may differ from the real tensor's, whose kernel looks at them (torch 2.11 to 2.13: a view of a transposed matrix as an
image, batch 1). Results of norms, and gradients where the incoming one lies otherwise than what the forward saw (channels
last, transposed), lie otherwise than the trace says; views of them that it found possible may need a copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.training.work import size_hint

aten = torch.ops.aten

# What torch's kernel wants in a layout of its own: operator -> indices of arguments.
_READS = {
    aten.native_group_norm.default: (0,),
    aten.native_group_norm_backward.default: (0, 1),  # the gradient, the input
}
# Their first result lies row-major, or channels last as the input does; in the trace as an argument does.
_BATCH_NORMS = {
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm_backward.default,
}
# Their first result lies as the kernel likes it, if no argument is row-major.
_OTHERS = {
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
    aten.native_dropout_backward.default,
    aten._log_softmax_backward_data.default,
    aten._softmax_backward_data.default,
}
# Their result lies as one of two arguments, in the trace as the other, if those differ.
_POINTWISE = {
    aten.elu_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.softplus_backward.default,
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
        copy_for_views(graph)
    graph.recompile()


def copy_for_views(graph: fx.GraphModule) -> None:
    """Let views of a graph, in place, copy where what they are of lies otherwise than in the trace."""
    for node in graph.graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
    graph.recompile()


def is_laid_out_otherwise(graph: fx.GraphModule) -> bool:
    """Whether some result may lie otherwise than the trace of a graph says."""
    return any(_may_lie_otherwise(node) for node in graph.graph.nodes)


def has_misplaced_batch_norm(graph: fx.GraphModule) -> bool:
    """Whether the result of a batch norm, or its gradient, lies otherwise than the trace of a graph says."""
    return any(node.target in _BATCH_NORMS and _may_lie_otherwise(node) for node in graph.graph.nodes)


def _may_lie_otherwise(node: fx.Node) -> bool:
    target = node.target
    if target not in _BATCH_NORMS and target not in _OTHERS and target not in _POINTWISE:
        return False
    made: Any = node.meta["val"]
    made = made[0] if isinstance(made, (tuple, list)) else made
    if not isinstance(made, torch.Tensor):
        return False
    row_major = tuple(range(made.dim()))
    if target in _BATCH_NORMS:
        given: Any = node.args[1 if target is aten.native_batch_norm_backward.default else 0]
        channels_last = (0, *row_major[2:], 1)
        images = made.dim() in (4, 5) and _order(given.meta["val"]) == channels_last
        return _order(made) != (channels_last if images else row_major)
    tensors = [made, *(source.meta["val"] for source in node.all_input_nodes)]
    layouts = {_order(t) for t in tensors if isinstance(t, torch.Tensor) and t.dim() == made.dim()}
    return len(layouts) > 1 if target in _POINTWISE else layouts != {row_major}


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions from the outermost in memory; those of size 1 where they stand."""
    sizes, strides = ([size_hint(n) for n in numbers] for numbers in (tensor.shape, tensor.stride()))
    return tuple(sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim)))
