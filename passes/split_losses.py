"""Take losses apart into the losses of all elements and their mean or sum.

torch's kernels first write the elements' losses into the output, which they resize for it. A managed output cannot be resized, so
the runtime would drop a prepared program with such a call in its first run. The values are the same: the kernels compute
them in these two steps.
"""

from __future__ import annotations

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.rewrite import insert_call, replace_if_same

aten = torch.ops.aten
# Operator -> the position of its reduction (0: none, 1: the mean, which is the default, 2: the sum).
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
                args, kwargs = list(node.args), dict(node.kwargs)
                reduction = args[place] if len(args) > place else kwargs.get("reduction", 1)
                if reduction not in (1, 2) or tensor_meta(node) is None:
                    continue
                if len(args) > place:
                    args[place] = 0
                else:
                    kwargs["reduction"] = 0
                elements = insert_call(node, op, args, kwargs)
                reduce = aten.mean.default if reduction == 1 else aten.sum.default
                count += replace_if_same(node, insert_call(node, reduce, [elements]))
        return PassResult(gm, changed=count > 0, count=count)
