"""Estimates of time and memory of a training graph's nodes, from traced sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from staticrt import tuning
from staticrt.ops import facts_of_call
from staticrt.ops.facts import Cost
from staticrt.ops.work import Shape, flops, moved_bytes

# Pointwise functions that evaluate a polynomial or more.
_FUNCTIONS = (
    "exp", "log", "tanh", "sigmoid", "gelu", "silu", "mish", "erf", "sin", "cos", "tan", "pow", "softplus", "elu",
    "rsqrt", "logit", "lgamma", "digamma", "atan", "asin", "acos", "sinh", "cosh",
)  # fmt: skip
_HEAVY = {"convolution_backward": 2.0, "_scaled_dot_product_flash_attention_for_cpu_backward": 2.5}
_FORWARD = {
    "convolution_backward": "aten::convolution",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "aten::scaled_dot_product_attention",
}


def size_hint(size: Any) -> int:
    """A size as a number; for a symbolic size, its value when traced."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if hint is not None else 64


def storage_bytes(node: fx.Node) -> int:
    """Bytes of the storage of a tensor's node."""
    value: Any = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return 0
    steps = zip(value.shape, value.stride(), strict=True)
    reach = [(size_hint(size), size_hint(stride)) for size, stride in steps]
    if any(size == 0 for size, _stride in reach):
        return 0
    return (1 + sum((size - 1) * stride for size, stride in reach)) * value.element_size()


def nanoseconds(node: fx.Node) -> float:
    """An estimate of a node's time on one core."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return 0.0
    facts = facts_of_call(target, node.args, node.kwargs)
    if facts.cost is Cost.VIEW:
        return 0.0
    name = target._schema.name
    short = name.split("::")[-1]
    reads = [shape for source in node.all_input_nodes for shape in _shapes(source.meta.get("val"))]
    writes = _shapes(node.meta.get("val"))
    if short in _HEAVY and len(reads) > 2:  # the incoming gradient comes before the forward's arguments
        work = _HEAVY[short] * flops(_FORWARD[short], reads[1:], reads[:1], {})
    else:
        work = flops(name, reads, writes, {})
    time = max(work / tuning.FLOPS_PER_NS, sum(moved_bytes(name, reads, writes)) / tuning.BYTES_PER_NS)
    if any(part in short for part in _FUNCTIONS):
        time = max(time, sum(shape.numel for shape in writes) / tuning.TRANSCENDENTALS_PER_NS)
    return time + tuning.CALL_NS


def _shapes(value: Any) -> list[Shape]:
    if isinstance(value, (tuple, list)):
        return [shape for item in value for shape in _shapes(item)]
    if not isinstance(value, torch.Tensor):
        return []
    sizes = tuple(size_hint(size) for size in value.shape)
    return [Shape(_NAMES.get(value.element_size(), "Float"), sizes)]


_NAMES = {1: "Byte", 2: "Half", 4: "Float", 8: "Double", 16: "ComplexDouble"}
