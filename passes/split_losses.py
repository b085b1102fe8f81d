"""Take losses apart into the losses of all elements and their mean or sum.

torch's kernels first write the elements' losses into the output, which they resize for it. A managed output cannot be resized, so a
prepared program that holds such a call would be dropped in its first run. The values are the same: the kernels compute
them in these two steps.
"""

from __future__ import annotations

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.rewrite import insert_call, replace_if_same

aten = torch.ops.aten
# Operator -> the position of its reduction, and the default of it (1: the mean, 2: the sum).
LOSSES = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.huber_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}


@register_pass
class SplitLosses(GraphPass):
    """Compute means and sums of losses from the elements' losses.

    Requires: ATen-level graph.
    Ensures:  no call in LOSSES reduces its result.
    """

    name = "split-losses"

    def run(self, gm: fx.GraphModule) -> PassResult:
        count = 0
        for op, place in LOSSES.items():
            for node in gm.graph.find_nodes(op="call_function", target=op):
                args = [*node.args, *(None for _ in range(place - len(node.args)))]
                kwargs = dict(node.kwargs)
                reduction = args[place] if len(args) > place else kwargs.pop("reduction", 1)
                if reduction not in (1, 2) or tensor_meta(node) is None:
                    continue
                elements = insert_call(node, op, [*args[:place], 0, *args[place + 1 :]], kwargs)
                reduce = aten.mean.default if reduction == 1 else aten.sum.default
                count += replace_if_same(node, insert_call(node, reduce, [elements]))
        return PassResult(gm, changed=count > 0, count=count)
