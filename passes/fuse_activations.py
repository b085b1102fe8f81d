"""Fuse activations that a model, or an exporter, decomposed into pointwise operators.

    gelu(x)       = 0.5 * x * (1 + erf(x / sqrt(2)))
    gelu_tanh(x)  = 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))
    silu(x)       = x * sigmoid(x)

ONNX has had Gelu only since operator set 20 and has no Silu; many models in Python decompose them, too. The fused
operators are one step of a tile loop with a cheaper formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from staticrt import tuning
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.attention_masks import literal
from staticrt.passes.base import GraphPass, PassResult, Tolerance, each_node, register_pass, tensor_meta
from staticrt.passes.rewrite import insert_call, replace_if_same

aten = torch.ops.aten
MUL = (aten.mul.Tensor, aten.mul.Scalar)
DIV = (aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode)
ADD = (aten.add.Tensor, aten.add.Scalar)
POW = (aten.pow.Tensor_Scalar,)
CUBIC = 0.044715


@dataclass
class _Product:
    """A tree of multiplications as a number times nodes. `inner` are its nodes below the root."""

    number: float = 1.0
    factors: list[fx.Node] = field(default_factory=list)
    inner: list[fx.Node] = field(default_factory=list)


@dataclass
class _Activation:
    target: Any
    x: fx.Node
    inner: list[fx.Node]
    kwargs: dict[str, Any] = field(default_factory=dict)


@register_pass
class FuseActivations(GraphPass):
    """Replace decomposed gelu, gelu with tanh and silu by the operators.

    Only float32, constants within rounding, and where no other node reads or writes an intermediate result.

    Requires: ATen-level graph.
    Ensures:  outputs equal within the rounding of the formulas, with the strides they had.
    """

    name = "fuse-activations"
    tolerance = Tolerance(rtol=1e-4, atol=1e-5)

    def run(self, gm: fx.GraphModule) -> PassResult:
        found: list[tuple[fx.Node, _Activation]] = []
        taken: set[fx.Node] = set()
        for node in each_node(gm, (*MUL, *DIV)):
            match = _match(node)
            if match is not None and not taken & {node, *match.inner}:
                taken |= {node, *match.inner}
                found.append((node, match))
        if not found:
            return PassResult(gm, changed=False)
        aliases = AliasInfo(gm)
        count = 0
        for node, match in found:
            if not any(aliases.is_written(n) for n in (match.x, *match.inner)):
                fused = insert_call(node, match.target, (match.x,), match.kwargs)
                count += replace_if_same(node, fused)
        return PassResult(gm, changed=count > 0, count=count)


def _match(node: fx.Node) -> _Activation | None:
    meta = tensor_meta(node)
    if meta is None or meta.dtype != torch.float32:
        return None
    product = _product(node)
    if product is None or len(product.factors) != 2:
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        if len(gate.users) != 1:
            continue
        if gate.target is aten.sigmoid.default and gate.args[0] is x and product.number == 1:
            return _Activation(aten.silu.default, x, [*product.inner, gate])
        if gate.target not in ADD or gate.kwargs or not _near(product.number, 0.5):
            continue
        curve = _plus(gate, 1.0)
        if curve is None or len(curve.users) != 1:
            continue
        inner = [*product.inner, gate, curve]
        if curve.target is aten.erf.default:
            if (argument := _scaled(curve.args[0], x, math.sqrt(0.5))) is not None:
                return _Activation(aten.gelu.default, x, [*inner, *argument])
        elif curve.target is aten.tanh.default and (argument := _cubic(curve.args[0], x)) is not None:
            return _Activation(aten.gelu.default, x, [*inner, *argument], {"approximate": "tanh"})
    return None


def _product(root: Any) -> _Product | None:
    """`root`, a multiplication or a division by a number, as a product; None if it is neither."""
    found = _Product()

    def take(value: Any, *, top: bool) -> bool:
        if (number := _number(value)) is not None:
            found.number *= number
            return True
        if not isinstance(value, fx.Node) or tensor_meta(value) is None:
            return False
        if top or len(value.users) == 1:
            if value.target in MUL and not value.kwargs and len(value.args) == 2:
                if not top:
                    found.inner.append(value)
                return all(take(item, top=False) for item in value.args)
            if value.target in DIV and (divisor := _divisor(value)) is not None:
                if not top:
                    found.inner.append(value)
                found.number /= divisor
                return take(value.args[0], top=False)
        found.factors.append(value)
        return len(found.factors) <= tuning.MAX_GELU_FACTORS

    return found if take(root, top=True) and root not in found.factors else None


def _number(value: Any) -> float | None:
    """The number that an operand is: finite, not 0; a tensor of equal elements only if it has no dimensions."""
    if isinstance(value, fx.Node):
        meta = tensor_meta(value)
        if meta is None or meta.dim() != 0:
            return None
    number = literal(value)
    return number if number is not None and number != 0 and math.isfinite(number) else None


def _divisor(node: fx.Node) -> float | None:
    """The number by which a node divides without rounding to integers."""
    if node.kwargs.get("rounding_mode") is not None or len(node.args) != 2:
        return None
    return _number(node.args[1])


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)


def _plus(node: fx.Node, number: float) -> fx.Node | None:
    """y if `node` is y + number."""
    for y, other in (node.args, node.args[::-1]):
        value = _number(other)
        if isinstance(y, fx.Node) and value is not None and _near(value, number):
            return y
    return None


def _scaled(node: Any, x: fx.Node, factor: float) -> list[fx.Node] | None:
    """Nodes of `factor * x` if `node` is that product."""
    product = _product(node) if isinstance(node, fx.Node) and len(node.users) == 1 else None
    if product is None or product.factors != [x] or not _near(product.number, factor):
        return None
    return [node, *product.inner]


def _cubic(node: Any, x: fx.Node) -> list[fx.Node] | None:
    """Nodes of sqrt(2 / pi) * (x + 0.044715 * x^3), also with x in front: sqrt(2 / pi) * x * (1 + 0.044715 * x^2)."""
    product = _product(node) if isinstance(node, fx.Node) and len(node.users) == 1 else None
    if product is None or not _near(product.number, math.sqrt(2 / math.pi)):
        return None
    outside = [factor for factor in product.factors if factor is not x]
    if len(outside) != 1 or outside[0].target not in ADD or outside[0].kwargs or len(outside[0].users) != 1:
        return None
    total = outside[0]
    inner = [node, *product.inner, total]
    if len(product.factors) == 2:
        power = _plus(total, 1.0)
        exponent = 2
    else:
        others = [item for item in total.args if item is not x]
        power, exponent = (others[0] if len(others) == 1 else None), 3  # type: ignore[assignment]
    if not isinstance(power, fx.Node) or len(power.users) != 1:
        return None
    term = _product(power)
    if term is None or not _near(term.number, CUBIC):
        return None
    inner += [power, *term.inner]
    found = 0
    for factor in term.factors:
        if factor is x:
            found += 1
        elif (
            factor.target in POW
            and factor.args[0] is x
            and factor.args[1] in (2, 3)
            and len(factor.users) == 1
        ):
            found += 2 if factor.args[1] == 2 else 3
            inner.append(factor)
        else:
            return None
    return inner if found == exponent else None
