"""Add a product of matrices to a sum where it is computed.

    mm(a1, b1) + mm(a2, b2) + mm(a3, b3)   ->   addmm(addmm(mm(a1, b1), a2, b2), a3, b3)

The gradient of a weight that is used at every time step is such a sum. Each product is as large as the weight, although
its operands have only as many rows as the batch: to write it, and to read it again, takes longer than to compute it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.canonical_views import PERMUTING, permutation
from staticrt.passes.rewrite import insert_call, replace_if_same
from staticrt.passes.symbols import same_meta

aten = torch.ops.aten
ADD = aten.add.Tensor
MM = aten.mm.default
ADDMM = aten.addmm.default


@register_pass
class AccumulateProducts(GraphPass):
    """Let the later product of an addition be added to the earlier one, which nothing else reads.

    The left operand must be a transposition, as in gradients of weights: other additions are fused with what follows
    them. The product's operands live as long as before, and the kernel writes the sum over the earlier product.
    Half precision is left alone: eager rounds each product, perhaps to infinity. Where a product of floats or doubles
    overflows, eager's sum may be NaN and this one infinite, or eager's infinite and this one finite.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the rounding of a sum, with the strides they had.
    """

    name = "accumulate-products"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        if len(gm.graph.find_nodes(op="call_function", target=MM)) < 2:
            return PassResult(gm, changed=False)
        position = {node: index for index, node in enumerate(gm.graph.nodes)}
        count = 0
        for addition in each_node(gm, (ADD,)):
            if not _adds_alike(addition):
                continue
            terms = [_below_transposition(node) for node in addition.all_input_nodes]
            are_transposed = terms[0] is not addition.all_input_nodes[0]
            if are_transposed is not (terms[1] is not addition.all_input_nodes[1]):
                continue
            total, product = sorted(terms, key=position.__getitem__)
            if not _is_only_added(total, (MM, ADDMM)) or not _is_gradient(product):
                continue
            new = insert_call(product, ADDMM, (total, *product.args))
            position[new] = position[product]
            if are_transposed:
                new = insert_call(addition, aten.t.default, (new,))
            count += replace_if_same(addition, new)
        return PassResult(gm, changed=count > 0, count=count)


def _adds_alike(node: fx.Node) -> bool:
    """Whether it adds two tensors of its own dtype, sizes and strides, read by nothing else."""
    whole = tensor_meta(node)
    sources = node.all_input_nodes
    if whole is None or whole.dtype not in (torch.float32, torch.float64) or node.kwargs or len(sources) != 2:
        return False
    metas = [tensor_meta(source) for source in sources]
    return all(meta is not None and same_meta(meta, whole) for meta in metas) and all(
        len(source.users) == 1 for source in sources
    )


def _below_transposition(node: fx.Node) -> fx.Node:
    return node.args[0] if _is_transposition(node) else node  # type: ignore[return-value]


def _is_transposition(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in PERMUTING and permutation(node) == [1, 0]


def _is_only_added(node: fx.Node, targets: tuple[Any, ...]) -> bool:
    return node.target in targets and len(node.users) == 1


def _is_gradient(node: fx.Node) -> bool:
    return _is_only_added(node, (MM,)) and _is_transposition(node.args[0])
