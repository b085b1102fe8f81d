"""Corrects layouts that a traced graph assumes and real tensors may not have.

Group normalisation and its backward need arguments that are row-major or channels last; eager converts others.
AOTAutograd decides about the conversion from the strides of fake tensors. For dimensions of size 1 these may differ from
the strides of the real tensor, which the kernel reads (torch 2.11 to 2.13: a view of a transposed matrix as an image,
batch 1). The results of norms, and gradients whose incoming gradient has another layout than the forward's result
(channels last, transposed), can have other strides than in the trace; a traced view of them may then need a copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.passes.canonical_views import MAY_COPY
from staticrt.training.work import size_hint

aten = torch.ops.aten

# Operators whose kernels need certain layouts -> indices of these arguments.
_READS = {
    aten.native_group_norm.default: (0,),
    aten.native_group_norm_backward.default: (0, 1),  # the gradient, the input
}
# The kernel's first result is row-major, or channels last like the input; in the trace it has an argument's layout.
_BATCH_NORMS = {
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm_backward.default,
}
# The kernel chooses the layout of the first result unless all arguments are row-major.
_OTHERS = {
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
    aten.glu.default,
    aten.glu_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
    aten.log_sigmoid_forward.default,
    aten.roll.default,
    aten.rrelu_with_noise_functional.default,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
    aten.native_dropout_backward.default,
    aten._log_softmax_backward_data.default,
    aten._softmax_backward_data.default,
}
# The result has the layout of one argument, in the trace that of the other, if these differ.
_POINTWISE = {
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_backward.default,
    aten.copysign.Tensor,
    aten.logit_backward.default,
    aten.elu_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.softplus_backward.default,
}


def settle_layouts(graph: fx.GraphModule) -> None:
    """Make a graph, in place, correct for tensors whose layout differs from the trace's.

    Arguments that must have the traced layout are copied into it, since later views were traced for it.
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
    """Turn views into reshapes, in place: they copy where the strides differ from the trace's."""
    for node in graph.graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
            node.meta[MAY_COPY] = True
    graph.recompile()


def is_laid_out_otherwise(graph: fx.GraphModule) -> bool:
    """Whether some result may have other strides than in the trace."""
    return any(_may_lie_otherwise(node) for node in graph.graph.nodes)


def has_misplaced_batch_norm(graph: fx.GraphModule) -> bool:
    """Whether a batch norm's result or its gradient has other strides than in the trace."""
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
    """Dimensions by stride, the largest first; ties keep their order."""
    sizes, strides = ([size_hint(n) for n in numbers] for numbers in (tensor.shape, tensor.stride()))
    return tuple(sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim)))
