"""Remove calls that return their argument unchanged.

Traced graphs contain many: dropout at inference, `x.to(x.dtype)`, slices of everything, expands
to the same sizes. Left in, each is a node to run, and an alias or a copy for the planner.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.effects import argument, is_pure, named_argument, node_facts
from staticrt.passes.symbols import known_equal, known_equal_all, same_meta, same_place

aten = torch.ops.aten

# If the metadata stays the same, the results equal the argument: these only copy or change metadata.
COPIES = frozenset(getattr(aten, name) for name in [
    "clone", "_to_copy", "to", "contiguous", "reshape", "reshape_as", "flatten", "ravel", "lift_fresh_copy",
    "resolve_conj", "resolve_neg", "positive", "type_as", "expand_copy", "alias_copy", "detach_copy",
    "view_copy", "_reshape_copy", "_unsafe_view", "cpu", "unflatten",
])  # fmt: skip
# They stop gradients, so removing them would change derivatives.
STOPS_GRADIENTS = frozenset({aten.detach, aten.detach_copy, aten.alias_copy, aten.data})


def _is_one(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 1


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


def _is_integral(node: fx.Node) -> bool:
    meta = tensor_meta(node)
    return meta is not None and meta.dtype in INTEGERS


INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
# Identities of arithmetic that hold bit by bit. x + 0 is not among them: -0.0 + 0 is 0.0.
ARITHMETIC: dict[OpOverload, Callable[[fx.Node], bool]] = {
    aten.mul.Tensor: lambda n: _is_one(n.args[1]),
    aten.mul.Scalar: lambda n: _is_one(n.args[1]),
    aten.div.Tensor: lambda n: _is_one(n.args[1]),
    aten.div.Scalar: lambda n: _is_one(n.args[1]),
    # Integers have one zero.
    aten.add.Tensor: lambda n: type(n.args[1]) is int and n.args[1] == 0 and _is_integral(n),
    aten.sub.Tensor: lambda n: type(n.args[1]) is int and n.args[1] == 0 and _is_integral(n),
    aten.constant_pad_nd.default: lambda n: all(_is_zero(p) for p in argument(n, 1)),
    aten.pad.default: lambda n: all(_is_zero(p) for p in argument(n, 1)),
    aten.repeat.default: lambda n: all(_is_one(r) for r in argument(n, 1)),
    # With p = 0 torch draws nothing either: aten/src/ATen/native/Dropout.cpp.
    aten.dropout.default: lambda n: named_argument(n, "train") is False or _is_zero(n.args[1]),
    aten.alpha_dropout.default: lambda n: named_argument(n, "train") is False,
    aten.feature_dropout.default: lambda n: named_argument(n, "train") is False,
    aten.feature_alpha_dropout.default: lambda n: named_argument(n, "train") is False,
}


@register_pass
class RemoveNoOps(GraphPass):
    """Replace calls that return their argument unchanged by the argument.

    Views of a whole tensor, copies that cannot be observed, dropout in eval mode, padding by
    nothing, `cat` of one tensor, and `copy_` of a tensor onto itself.

    Requires: ATen-level graph.
    Ensures:  outputs, written inputs and the aliases among them as before, bit by bit.

    Args:
        inference: the graph is not differentiated, so that `detach` is a no-op, too, except for results
            that view an input.
    """

    name = "remove-no-ops"

    def __init__(self, *, inference: bool = True) -> None:
        self.inference = inference

    def run(self, gm: fx.GraphModule) -> PassResult:
        aliases = AliasInfo(gm)
        removed = 0
        for node in list(gm.graph.nodes):
            if node.op != "call_function" or not isinstance(node.target, OpOverload):
                continue
            if node.target is aten.copy_.default:
                same = node.args[0] is node.args[1]
                source: Any = node.args[0]
            elif node.target is aten.copy.default:
                source = node.args[1]
                same = _keeps_a_layout(node, aliases) and aliases.may_replace(node, source)
            elif node.target._overloadpacket in STOPS_GRADIENTS and (
                not self.inference or aliases.detaches_a_result(node)
            ):
                continue
            else:
                source = _only_source(node)
                same = source is not None and is_pure(node) and _returns_its_argument(node, source)
                same = same and aliases.may_replace(node, source)
            if not same or (aliases.is_output(node) and node.target is aten.copy_.default):
                continue
            aliases.replaced(node, source)
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
            removed += 1
        return PassResult(gm, changed=removed > 0, count=removed)


def _keeps_a_layout(node: fx.Node, aliases: AliasInfo) -> bool:
    """Whether `copy(x, y)`, which returns y with the strides of x, can be replaced by y.

    Functionalization leaves such copies for in-place operators on parts of a tensor, such as the gates of an LSTM cell.
    A result with gaps between its elements would take the memory of the whole tensor for each part.
    """
    source = node.args[1]
    before = tensor_meta(source) if isinstance(source, fx.Node) else None
    after = tensor_meta(node)
    if before is None or after is None:
        return False
    if same_meta(before, after):
        return True
    strides = (*before.stride(), *after.stride())
    # Both are row-major, so results computed from y have the strides of those from the copy. Visible strides stay.
    return (
        all(type(stride) is int for stride in strides)
        and _kind(before) == _kind(after)
        and known_equal_all(before.shape, after.shape)
        and _is_contiguous(before)
        and _decrease(before.stride())
        and _decrease(after.stride())
        and not aliases.reaches_output(node)
        and not any(map(_may_see_strides, _readers(node)))
    )


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.layout, tensor.is_conj(), tensor.is_neg()


def _may_see_strides(node: fx.Node) -> bool:
    """Whether a call may depend on its arguments' strides, unlike torch's operators."""
    if node.target is operator.getitem:
        return False
    known = isinstance(node.target, OpOverload) and node.target.namespace in ("aten", "staticrt")
    return not known or node.target is aten.as_strided.default


def _is_contiguous(tensor: torch.Tensor) -> bool:
    """As `Tensor.is_contiguous`, which raises where a size that data decides may be 0 or 1."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if known_equal(size, 1):
            continue
        if not known_equal(stride, expected):
            return False
        expected = expected * size
    return True


def _decrease(strides: Sequence[int]) -> bool:
    return all(a > b for a, b in itertools.pairwise(strides)) and min(strides, default=1) > 0


def _readers(node: fx.Node) -> set[fx.Node]:
    """The readers of a value and of its views."""
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        for user in todo.pop().users:
            if user not in found:
                found.add(user)
                if user.target is operator.getitem or node_facts(user).aliases:
                    todo.append(user)
    return found


def _only_source(node: fx.Node) -> fx.Node | None:
    """The tensor that the node would return: its first argument, or the only element of that."""
    if not node.args:
        return None
    first = node.args[0]
    if isinstance(first, (list, tuple)) and len(first) == 1:
        first = first[0]
    return first if isinstance(first, fx.Node) else None


def _returns_its_argument(node: fx.Node, source: fx.Node) -> bool:
    before, after = tensor_meta(source), tensor_meta(node)
    if before is None or after is None:
        return False
    assert isinstance(node.target, OpOverload)
    if node.target._overloadpacket in COPIES:
        return same_meta(before, after)
    if node.target is aten.cat.default:
        return same_meta(before, after) and before.dim() > 0
    check = ARITHMETIC.get(node.target)
    if check is not None:
        return check(node) and same_meta(before, after)
    # A view of the same elements in the same order of the same storage.
    known = node_facts(node)
    return known.is_view and len(known.aliases) == 1 and same_place(before, after)
