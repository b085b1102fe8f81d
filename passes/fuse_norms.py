"""Fuse layer norm and RMS norm that a model computes with pointwise operators and means.

    rms_norm(x)   = x * rsqrt(mean(x^2) + eps) [* weight]
    layer_norm(x) = d * rsqrt(mean(d^2) + eps) [* weight [+ bias]]     with d = x - mean(x)

Unfused, they read `x` from memory four to seven times; the fused operators read it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.effects import named_argument
from staticrt.passes.rewrite import insert_call, replace_if_same
from staticrt.passes.symbols import known_equal

aten = torch.ops.aten
MUL = (aten.mul.Tensor,)
DIV = (aten.div.Tensor,)
ADD = (aten.add.Tensor, aten.add.Scalar)
POW = (aten.pow.Tensor_Scalar,)
SQUARE = (aten.square.default,)


@dataclass
class _Norm:
    """The part of the pattern matched so far: its input and its last node."""

    x: fx.Node
    eps: float
    end: fx.Node
    inner: list[fx.Node]  # nodes of the pattern before `end`
    centred: bool  # layer norm
    weight: fx.Node | None = None
    bias: fx.Node | None = None


@register_pass
class FuseNorms(GraphPass):
    """Replace unfused norms over the last dimension by `layer_norm` and `rms_norm`.

    Only float32, the last dimension of a known size, one literal eps, a weight and bias of exactly
    that dimension; not where another node reads or writes an intermediate result.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the order of accumulation, with the strides they had.
    """

    name = "fuse-norms"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        matches = [m for node in each_node(gm, (*MUL, *DIV)) if (m := _match(node)) is not None]
        if not matches:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        count = 0
        for match in matches:
            scaling = match.end
            _extend(match)
            read = [n for n in (match.x, match.weight, match.bias) if n is not None]
            if any(aliases.is_written(n) for n in [*read, *match.inner]):
                continue
            # The input may be a norm that was replaced meanwhile, so match again.
            now = _match(scaling)
            if now is not None:
                _extend(now)
                count += _replace(now)
        return PassResult(gm, changed=count > 0, count=count)


def _replace(match: _Norm) -> bool:
    end = match.end
    size = [match.x.meta["val"].shape[-1]]
    if match.centred:
        args = (match.x, size, match.weight, match.bias, match.eps)
        fused = insert_call(end, aten.layer_norm.default, args)
    else:
        fused = insert_call(end, aten.rms_norm.default, (match.x, size, match.weight, match.eps))
    return replace_if_same(end, fused)


def _match(node: fx.Node) -> _Norm | None:
    """The norm whose scaling by the standard deviation is `node`, without weight and bias."""
    if node.kwargs or len(node.args) != 2 or not all(isinstance(a, fx.Node) for a in node.args):
        return None
    pairs = [(node.args[0], node.args[1])]
    if node.target in MUL:
        pairs.append((node.args[1], node.args[0]))
    for scaled, factor in pairs:
        assert isinstance(scaled, fx.Node)
        assert isinstance(factor, fx.Node)
        found = _deviation(factor, divides=node.target in DIV)
        if found is None:
            continue
        squared, eps, inner = found
        if squared is not scaled or not _fits(scaled):
            continue
        x = _centred(scaled)
        # The minuend is the input, if the difference has no other reader.
        readers = {node, *inner}
        if x is not None and all(user in readers for user in scaled.users):
            mean = scaled.args[1]
            assert isinstance(mean, fx.Node)
            return _Norm(x, eps, node, [*inner, scaled, mean], centred=True)
        return _Norm(scaled, eps, node, inner, centred=False)
    return None


def _fits(x: fx.Node) -> bool:
    meta = tensor_meta(x)
    return (
        meta is not None
        and meta.dtype == torch.float32
        and meta.dim() > 0
        and isinstance(meta.shape[-1], int)
        and meta.shape[-1] > 0
    )


def _deviation(factor: fx.Node, *, divides: bool) -> tuple[fx.Node, float, list[fx.Node]] | None:
    """(x, eps, nodes) if `factor` is rsqrt(mean(x^2) + eps), or its reciprocal where it divides."""
    inner = [factor]
    if not divides and factor.target is aten.reciprocal.default and len(factor.users) == 1:
        factor = _arg(factor)
        inner.append(factor)
        divides = True
    if factor.target is not (aten.sqrt.default if divides else aten.rsqrt.default):
        return None
    shifted = _arg(factor)
    if shifted.target not in ADD or shifted.kwargs:
        return None
    mean, eps = shifted.args
    if not isinstance(mean, fx.Node) or not isinstance(eps, (int, float)) or isinstance(eps, bool):
        return None
    if mean.target is not aten.mean.dim or not _over_last(mean):
        return None
    square = _arg(mean)
    inner += [shifted, mean, square]
    if any(len(n.users) != 1 for n in inner):
        return None
    x = _squared(square)
    return None if x is None else (x, float(eps), inner)


def _arg(node: fx.Node) -> Any:
    return node.args[0]


def _over_last(mean: fx.Node) -> bool:
    meta = tensor_meta(mean.args[0])
    dims = mean.args[1]
    return (
        meta is not None
        and isinstance(dims, (list, tuple))
        and list(dims) in ([-1], [meta.dim() - 1])
        and named_argument(mean, "keepdim", False) is True
        and named_argument(mean, "dtype") in (None, torch.float32)
    )


def _squared(node: Any) -> fx.Node | None:
    """x if `node` is x * x."""
    if not isinstance(node, fx.Node) or node.kwargs or not isinstance(node.args[0], fx.Node):
        return None
    x = node.args[0]
    is_square = (
        (node.target in POW and node.args[1] == 2)
        or (node.target in MUL and node.args[1] is x)
        or node.target in SQUARE
    )
    return x if is_square else None


def _centred(node: fx.Node) -> fx.Node | None:
    """x if `node` is x - mean(x)."""
    if node.target is not aten.sub.Tensor or node.kwargs or len(node.args) != 2:
        return None
    x, mean = node.args
    if not isinstance(x, fx.Node) or not isinstance(mean, fx.Node) or not _fits(x):
        return None
    is_mean = mean.target is aten.mean.dim and mean.args[0] is x and len(mean.users) == 1 and _over_last(mean)
    return x if is_mean else None


def _extend(match: _Norm) -> None:
    """Extend the match by a following multiplication by a weight and addition of a bias."""
    after = _only_user(match.end)
    if after is not None and after.target in MUL and (weight := _vector(after, match)) is not None:
        match.inner.append(match.end)
        match.end, match.weight = after, weight
        after = _only_user(after) if match.centred else None
        if (
            after is not None
            and after.target is aten.add.Tensor
            and (bias := _vector(after, match)) is not None
        ):
            match.inner.append(match.end)
            match.end, match.bias = after, bias


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _vector(node: fx.Node, match: _Norm) -> fx.Node | None:
    """The other operand of `node`, if it is a vector along the norm's dimension."""
    if node.kwargs or len(node.args) != 2:
        return None
    other = node.args[1] if node.args[0] is match.end else node.args[0]
    meta = tensor_meta(other)
    fits = (
        isinstance(other, fx.Node)
        and other is not match.end
        and meta is not None
        and meta.dim() == 1
        and meta.dtype == torch.float32
        and known_equal(meta.shape[0], match.x.meta["val"].shape[-1])
    )
    return other if fits else None  # type: ignore[return-value]
