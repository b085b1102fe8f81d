"""Which targets of a torch.export graph a file may call without the caller's consent.

Operators are judged by the rule for staticrt's own archives, csrc/archive/operator_rule.h.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staticrt.native import _C

_ARITHMETIC = """add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ invert lshift rshift
    getitem"""
_PYTHON = frozenset(
    [f"_operator.{name}" for name in _ARITHMETIC.split()]
    + [f"math.{name}" for name in ("ceil", "floor", "trunc", "sqrt")]
    + [
        f"torch.sym_{name}"
        for name in ["float", "int", "ite", "max", "min", "not", "sqrt", "sum", "fresh_size"]
    ]
)
_HIGHER_ORDER = frozenset([
    "cond", "while_loop", "scan", "associative_scan", "map", "map_impl", "wrap_with_set_grad_enabled",
    "wrap_with_autocast", "invoke_subgraph", "auto_functionalized", "auto_functionalized_v2",
    "flex_attention", "with_effects",
])  # fmt: skip


def refusal(target: str, allowed: Sequence[str] = ()) -> str:
    """Why a file may not call this target of a graph (`torch.ops.aten.add.Tensor`), or "".

    Args:
        allowed: what the caller consents to: "mylib::op", or a whole library, "mylib::*".
    """
    if target in _PYTHON:
        return ""
    parts = target.split(".")
    if parts[:2] != ["torch", "ops"] or not 4 <= len(parts) <= 5:
        return "which is not an operator"
    namespace, name = parts[2], parts[3]
    if namespace == "higher_order":
        return "" if name in _HIGHER_ORDER else "a higher-order operator that is not known"
    overload = dispatcher_name(target)
    return _C.operator_refusal(overload, list(allowed)) if overload else "which this torch does not have"


def dispatcher_name(target: str) -> str:
    """`aten::add.Tensor` for `torch.ops.aten.add.Tensor`, "" for what is not an operator of this process."""
    parts = target.split(".")
    if parts[:2] != ["torch", "ops"] or len(parts) != 5 or parts[2] == "higher_order":
        return ""
    _torch, _ops, namespace, name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if not isinstance(getattr(packet, overload, None), torch._ops.OpOverload):
        return ""
    return f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
