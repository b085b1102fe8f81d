"""Remove values without readers.

Calls that write, draw random numbers or act on the outside (assertions on data, prints) stay: leaving
out a dead `rand` would change every number drawn after it.
"""

from __future__ import annotations

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.effects import is_pure, named_argument

ASSERT_SCALAR = torch.ops.aten._assert_scalar.default
ASSERT_METADATA = torch.ops.aten._assert_tensor_metadata.default


@register_pass
class RemoveDeadCode(GraphPass):
    """Remove pure nodes without users, and assertions that cannot fail.

    Requires: ATen-level graph.
    Ensures:  every node but placeholders is read or has an effect; outputs bitwise equal.
    """

    name = "remove-dead-code"

    def run(self, gm: fx.GraphModule) -> PassResult:
        removed = 0
        # Readers go first, so one reverse walk suffices.
        for node in reversed(gm.graph.nodes):
            if not node.users and (is_pure(node) or _cannot_fail(node)):
                gm.graph.erase_node(node)
                removed += 1
        return PassResult(gm, changed=removed > 0, count=removed)

    def ensures(self, gm: fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            if not node.users and is_pure(node):
                raise self.refuse("left a pure node without readers", at=node)


def _cannot_fail(node: fx.Node) -> bool:
    """An assertion that is known to hold when the graph is built.

    Dtype and device of every value follow from those of the inputs, by which traces are keyed.
    """
    if node.op != "call_function":
        return False
    if node.target is ASSERT_SCALAR:
        return node.args[0] in (True, 1)
    if node.target is ASSERT_METADATA:
        meta = tensor_meta(node.args[0])
        sizes, strides, dtype = (named_argument(node, name) for name in ("size", "stride", "dtype"))
        device, layout = named_argument(node, "device"), named_argument(node, "layout")
        return (
            meta is not None
            and sizes is None
            and strides is None
            and dtype in (None, meta.dtype)
            and device in (None, meta.device)
            and layout in (None, meta.layout)
        )
    return False
