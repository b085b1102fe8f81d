"""Fold an inference batch norm into the convolution or linear layer before it.

    bn(conv(x, w, b)) = conv(x, w * s, (b - mean) * s + shift)   with s = scale / sqrt(var + eps)

Views between a linear layer and its norm stay where they are. The new weights are written as calls on the old
ones; `FoldConstants` then computes them once. That pays only if the weights keep their values, so the pass is
part of the pipeline with `freeze` alone.

A large weight that kernels pack in place (csrc/kernels/conv/conv_in_place.cpp, gemm_routes.cpp) is not folded: the folded
weight would be a second copy. Instead the result is scaled and shifted inside the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.effects import named_argument
from staticrt.passes.rewrite import insert_call
from staticrt.passes.symbols import known_equal
from staticrt.shapes.fake_results import new

aten = torch.ops.aten
NATIVE = aten._native_batch_norm_legit_no_training.default
WHOLE = aten.batch_norm.default
# As in csrc/kernels/conv/conv_in_place.cpp,
MIN_FLOATS = 1 << 19
MAX_PIXELS, MAX_PIXELS_OF_ONE_TAP = 64, 1024
MIN_CHANNELS = 64
# and in gemm_routes.cpp for linear layers and 1x1 kernels.
MAX_SMALL_FLOATS, MANY_FLOATS, MANY_CHANNELS = 1 << 14, 1 << 16, 192
CONVS = frozenset({aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default})
LINEAR = aten.linear.default
VIEWS = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.flatten.using_ints}
)


@register_pass
class FoldBatchNorm(GraphPass):
    """Replace conv or linear + batch norm in eval mode by a conv or linear with other weights.

    Not where another node reads the layer's result or the norm's saved statistics, where the norm uses
    the batch's own statistics, for transposed convs, and for weights that are not `frozen`.

    Requires: ATen-level graph.
    Ensures:  outputs equal within rounding of one multiplication by the norm's scale.

    Args:
        frozen: targets of the placeholders or `get_attr`s whose tensors keep their values.
        copies_weights: large weights of linear layers and 1x1 kernels are folded, too.
    """

    name = "fold-batch-norm"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def __init__(self, frozen: frozenset[str], copies_weights: bool = False) -> None:
        self.frozen = frozen
        self.copies_weights = copies_weights

    def run(self, gm: fx.GraphModule) -> PassResult:
        count = sum(self._fold(norm) for norm in each_node(gm, [NATIVE, WHOLE]))
        return PassResult(gm, changed=count > 0, count=count)

    def _fold(self, norm: fx.Node) -> bool:
        if norm.kwargs or (norm.target is WHOLE and norm.args[5] is not False):
            return False
        normed, scale, shift, mean, var = norm.args[:5]
        layer = _producer(normed)
        eps = norm.args[6] if norm.target is NATIVE else norm.args[7]
        if mean is None or var is None or layer is None or not isinstance(normed, fx.Node):
            return False
        readers = list(norm.users) if norm.target is NATIVE else [norm]
        if norm.target is NATIVE and any(r.args[1] != 0 for r in readers):
            return False
        weight, bias = layer.args[1], named_argument(layer, "bias")
        if named_argument(layer, "transposed", False) is not False:
            return False
        if not all(n is None or self._is_frozen(n) for n in (weight, bias, scale, shift, mean, var)):
            return False
        kernel, result = tensor_meta(weight), tensor_meta(layer)
        operands = [tensor_meta(n) for n in (weight, bias, scale, shift, mean, var) if n is not None]
        if kernel is None or result is None or any(v is None or v.dtype != result.dtype for v in operands):
            return False
        factor, offset = _scales(layer, bias, (scale, shift, mean, var), eps)
        if _stays(layer, kernel, result, self.copies_weights):
            (reader,) = layer.users
            _set_bias(layer, None)
            if layer.target is not LINEAR:
                factor, offset = (
                    insert_call(reader, aten.view.default, (n, [1, -1, 1, 1])) for n in (factor, offset)
                )
            scaled = insert_call(reader, aten.mul.Tensor, (layer, factor))
            ending = insert_call(reader, aten.add.Tensor, (scaled, offset))
            reader.replace_input_with(layer, ending)
            normed = ending if reader is norm else normed
        else:
            columns = insert_call(layer, aten.view.default, (factor, [-1] + [1] * (kernel.dim() - 1)))
            layer.update_arg(1, insert_call(layer, aten.mul.Tensor, (weight, columns)))
            _set_bias(layer, offset)
        for reader in readers:
            reader.replace_all_uses_with(normed)
            norm.graph.erase_node(reader)
        if norm.target is NATIVE:
            norm.graph.erase_node(norm)
        return True

    def _is_frozen(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and str(node.target) in self.frozen


def _producer(normed: Any) -> fx.Node | None:
    """The convolution, or the linear layer before any views, whose result the norm alone reads."""
    node = normed
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if node.target in CONVS:
            return node if node is normed else None
        if node.target is LINEAR:
            # Channels are the last dim of [rows, channels], and of the layer's result unless its weight is a vector.
            rows, weight = tensor_meta(normed), tensor_meta(node.args[1])
            fits = rows is not None and rows.dim() == 2 and weight is not None and weight.dim() == 2
            return node if fits else None
        if node.target not in VIEWS or not _keeps_last_dim(node):
            return None
        node = node.args[0]
    return None


def _keeps_last_dim(view: fx.Node) -> bool:
    before, after = tensor_meta(view.args[0]), tensor_meta(view)
    return (
        before is not None
        and after is not None
        and min(before.dim(), after.dim()) > 0
        and known_equal(before.shape[-1], after.shape[-1])
    )


def _set_bias(layer: fx.Node, bias: fx.Node | None) -> None:
    if len(layer.args) > 2:
        layer.update_arg(2, bias)
    else:
        layer.kwargs = {**layer.kwargs, "bias": bias}


def _scales(layer: fx.Node, bias: Any, norm: Any, eps: Any) -> tuple[fx.Node, fx.Node]:
    """The calls that compute what the norm multiplies by and adds, each [out], put before `layer`."""
    scale, shift, mean, var = norm
    like = var.meta["val"]

    def call(op: Any, *args: Any) -> fx.Node:
        return insert_call(layer, op, args, value=new(like.fake_mode, like.shape, like))

    factor = call(aten.rsqrt.default, call(aten.add.Tensor, var, eps))
    if scale is not None:
        factor = call(aten.mul.Tensor, factor, scale)
    offset = call(aten.neg.default, mean) if bias is None else call(aten.sub.Tensor, bias, mean)
    offset = call(aten.mul.Tensor, offset, factor)
    if shift is not None:
        offset = call(aten.add.Tensor, offset, shift)
    return factor, offset


def _stays(layer: fx.Node, weight: torch.Tensor, result: torch.Tensor, copies_weights: bool) -> bool:
    """Whether a kernel would pack the weight [out, in, height, width] in place, at the sizes of the trace.

    A wrong guess costs a little time and changes no result.
    """
    if (
        weight.dtype != torch.float32
        or weight.dim() not in (2, 4)
        or not all(isinstance(n, int) for n in weight.shape)
    ):
        return False
    if layer.target is LINEAR:
        return not copies_weights and _is_packed_in_place(weight)
    out_channels, group_in, height, width = weight.shape
    hints = [n.node.hint if isinstance(n, torch.SymInt) else n for n in result.shape]
    source = tensor_meta(layer.args[0])
    channels = None if source is None else source.shape[1]
    if (
        len(hints) != 4
        or any(not isinstance(n, int) for n in hints)
        or channels != group_in
        or not weight.is_contiguous()
    ):
        return False
    floats, pixels = weight.numel(), hints[0] * hints[2] * hints[3]
    if height * width > 1:
        return floats >= MIN_FLOATS and pixels <= MAX_PIXELS and out_channels >= MIN_CHANNELS
    if copies_weights:
        return False
    steps = named_argument(layer, "stride", 1), named_argument(layer, "padding", 0)
    if steps[0] in (1, [1], [1, 1]) and steps[1] in (0, [0], [0, 0]):
        return _is_packed_in_place(weight)
    return floats >= MIN_FLOATS and pixels <= MAX_PIXELS_OF_ONE_TAP and out_channels >= MIN_CHANNELS


def _is_packed_in_place(weight: torch.Tensor) -> bool:
    """Whether products with this constant matrix [out, in], or 1x1 kernel, read it without a second copy."""
    floats = weight.numel()
    return floats > MAX_SMALL_FLOATS and (weight.shape[0] >= MANY_CHANNELS or floats > MANY_FLOATS)
