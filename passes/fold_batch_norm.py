"""Fold an inference batch norm into the convolution before it.

    bn(conv(x, w, b)) = conv(x, w * s, (b - mean) * s + shift)   with s = scale / sqrt(var + eps)

The new weights are written as calls on the old ones; `FoldConstants` then computes them once. That pays
only if the weights keep their values, so the pass is part of the pipeline with `freeze` alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.ops.facts import Tolerance
from staticrt.passes.base import GraphPass, PassResult, each_node, register_pass, tensor_meta
from staticrt.passes.effects import named_argument
from staticrt.passes.rewrite import insert_call

aten = torch.ops.aten
NATIVE = aten._native_batch_norm_legit_no_training.default
WHOLE = aten.batch_norm.default
CONVS = frozenset({aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default})


@register_pass
class FoldBatchNorm(GraphPass):
    """Replace conv + batch norm in eval mode by a conv with other weights.

    Not where somebody else reads the conv's result or the norm's saved statistics, where the norm uses
    the batch's own statistics, for transposed convs, and for weights that are not `frozen`.

    Requires: ATen-level graph.
    Ensures:  outputs equal within rounding of one multiplication by the norm's scale.

    Args:
        frozen: targets of the placeholders or `get_attr`s whose tensors keep their values.
    """

    name = "fold-batch-norm"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def __init__(self, frozen: frozenset[str]) -> None:
        self.frozen = frozen

    def run(self, gm: fx.GraphModule) -> PassResult:
        count = sum(self._fold(norm) for norm in each_node(gm, [NATIVE, WHOLE]))
        return PassResult(gm, changed=count > 0, count=count)

    def _fold(self, norm: fx.Node) -> bool:
        if norm.kwargs or (norm.target is WHOLE and norm.args[5] is not False):
            return False
        conv, scale, shift, mean, var = norm.args[:5]
        eps = norm.args[6] if norm.target is NATIVE else norm.args[7]
        if (
            mean is None
            or var is None
            or not isinstance(conv, fx.Node)
            or conv.target not in CONVS
            or len(conv.users) != 1
        ):
            return False
        readers = list(norm.users) if norm.target is NATIVE else [norm]
        if norm.target is NATIVE and any(r.args[1] != 0 for r in readers):
            return False
        weight, bias = conv.args[1], named_argument(conv, "bias")
        if named_argument(conv, "transposed", False) is not False:
            return False
        if not all(n is None or self._is_frozen(n) for n in (weight, bias, scale, shift, mean, var)):
            return False
        kernel, result = tensor_meta(weight), tensor_meta(conv)
        if kernel is None or result is None or kernel.dtype != result.dtype:
            return False
        new_weight, new_bias = _weights(conv, (weight, bias), (scale, shift, mean, var), eps, kernel.dim())
        conv.update_arg(1, new_weight)
        if len(conv.args) > 2:
            conv.update_arg(2, new_bias)
        else:
            conv.kwargs = {**conv.kwargs, "bias": new_bias}
        for reader in readers:
            reader.replace_all_uses_with(conv)
            norm.graph.erase_node(reader)
        if norm.target is NATIVE:
            norm.graph.erase_node(norm)
        return True

    def _is_frozen(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and str(node.target) in self.frozen


def _weights(conv: fx.Node, own: Any, norm: Any, eps: Any, rank: int) -> tuple[fx.Node, fx.Node]:
    """The calls that compute the folded weight [out, in, ...] and bias [out], put before `conv`."""
    weight, bias = own
    scale, shift, mean, var = norm

    def call(op: Any, *args: Any) -> fx.Node:
        return insert_call(conv, op, args)

    factor = call(aten.rsqrt.default, call(aten.add.Tensor, var, eps))
    if scale is not None:
        factor = call(aten.mul.Tensor, factor, scale)
    offset = call(aten.neg.default, mean) if bias is None else call(aten.sub.Tensor, bias, mean)
    offset = call(aten.mul.Tensor, offset, factor)
    if shift is not None:
        offset = call(aten.add.Tensor, offset, shift)
    columns = call(aten.view.default, factor, [-1] + [1] * (rank - 1))
    return call(aten.mul.Tensor, weight, columns), offset
