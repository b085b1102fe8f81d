"""Remove what nobody reads.

Calls that write, draw random numbers or act on the outside (assertions on data, prints) stay: leaving
out a dead `rand` would change every number drawn after it.
"""

from __future__ import annotations

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, register_pass
from staticrt.passes.effects import is_pure

ASSERT_SCALAR = torch.ops.aten._assert_scalar.default


@register_pass
class RemoveDeadCode(GraphPass):
    """Remove pure nodes without users, and assertions that can't fail.

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
                raise self.refuse("left a node that nobody reads", at=node)


def _cannot_fail(node: fx.Node) -> bool:
    """An assertion on a number that is known, and true, when the graph is built."""
    return node.op == "call_function" and node.target is ASSERT_SCALAR and node.args[0] in (True, 1)
