"""Static properties of an attention mask: whether it is causal, and whether it can be -inf.

A mask that is True, or 0, exactly where `key <= query` needs no memory: causal attention skips what it hides. A
mask without -inf cannot hide a whole row, for which unfused attention returns NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from staticrt import tuning
from staticrt.passes.base import tensor_meta
from staticrt.passes.canonical_views import PERMUTING, REGROUPING, RESHAPE
from staticrt.passes.effects import argument
from staticrt.passes.symbols import known_equal, known_equal_all

aten = torch.ops.aten

# Added to a score of any likely size, this leaves a probability of exactly 0.
HIDING = -1e9
FLOAT32_MAX = torch.finfo(torch.float32).max

ONE_SOURCE = frozenset(
    {aten.clone.default, aten.contiguous.default, aten.detach.default, aten.alias.default}
    | {aten.lift_fresh_copy.default}
)
CASTS = frozenset({aten._to_copy.default, aten.to.dtype})
SPREADING = frozenset({aten.expand.default, RESHAPE, *REGROUPING, *PERMUTING})
NOT = frozenset({aten.logical_not.default, aten.bitwise_not.default})
AND = frozenset({aten.bitwise_and.Tensor, aten.logical_and.default, aten.__and__.Tensor})
FILLS = {  # position of the value
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
    aten.scalar_tensor.default: 0,
}
ONES = frozenset({aten.ones.default, aten.ones_like.default, aten.new_ones.default})
ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
# (key - row) compared with 0: (mirrored form, whether equality is included, holds below the diagonal)
COMPARISONS = {
    aten.le.Tensor: (True, True),
    aten.lt.Tensor: (False, True),
    aten.ge.Tensor: (True, False),
    aten.gt.Tensor: (False, False),
}


def literal(value: Any) -> float | None:
    """The value of a node whose elements are all one constant, or a Python number itself."""
    dtypes: list[torch.dtype] = []
    for _ in range(tuning.MAX_MASK_DEPTH):
        if isinstance(value, (bool, int, float)):
            number: float | None = float(value)
            for dtype in reversed(dtypes):
                number = None if number is None else _converted(number, dtype)
            return number
        meta = tensor_meta(value)
        if meta is None or value.op != "call_function":
            return None
        dtypes.append(meta.dtype)
        if value.target in ONES:
            value = 1.0
        elif value.target in ZEROS:
            value = 0.0
        elif value.target in FILLS:
            value = argument(value, FILLS[value.target])
        elif value.target in ONE_SOURCE or value.target in SPREADING or value.target in CASTS:
            value = value.args[0]
        else:
            return None
    return None


def _converted(number: float, dtype: torch.dtype) -> float | None:
    """`number` as an element of `dtype`; None if that changes it by more than rounding."""
    if dtype == torch.bool:
        return float(number != 0)
    if dtype in (torch.int64, torch.int32):
        return number if abs(number) < 2**31 and number == int(number) else None
    if dtype not in (torch.float32, torch.float64):
        return None
    return number if not math.isfinite(number) or abs(number) <= FLOAT32_MAX else None


def hides_future(node: Any, depth: int = 0) -> bool | None:
    """For truth values [..., rows, keys]: True if set exactly where key > row, False if exactly where key <= row.

    None if neither is known.
    """
    if depth > tuning.MAX_MASK_DEPTH or not isinstance(node, fx.Node) or node.op != "call_function":
        return None
    target: Any = node.target
    if target in ONE_SOURCE or _keeps_truth(node):
        return hides_future(node.args[0], depth + 1)
    if target in SPREADING:
        return hides_future(node.args[0], depth + 1) if _keeps_last_two(node) else None
    if target in NOT:
        return _flipped(hides_future(node.args[0], depth + 1), _is_bool(node))
    if target in (aten.eq.Scalar, aten.ne.Scalar):
        return _compared_with_number(node, depth)
    if target in (aten.tril.default, aten.triu.default):
        return _triangle(node)
    if target in COMPARISONS:
        return _compared_lines(node)
    if target in AND:
        for one, other in (node.args, node.args[::-1]):
            if literal(one) == 1.0 and _is_bool(one) and _is_bool(other) and _same_last_two(node, other):
                return hides_future(other, depth + 1)
    return None


def _keeps_truth(node: fx.Node) -> bool:
    """Whether a cast keeps zeros 0 and all other values unequal to 0."""
    if node.target not in CASTS:
        return False
    meta = tensor_meta(node)
    return _is_bool(node.args[0]) or (
        meta is not None and meta.dtype in (torch.bool, torch.float32, torch.float64)
    )


def _flipped(found: bool | None, really: bool) -> bool | None:
    return None if found is None or not really else not found


def _is_bool(node: Any) -> bool:
    meta = tensor_meta(node)
    return meta is not None and meta.dtype == torch.bool


def _compared_with_number(node: fx.Node, depth: int) -> bool | None:
    """`mask == 0`, `mask != 0`, and `== 1` where the mask is made of zeros and ones."""
    inner = hides_future(node.args[0], depth + 1)
    number, equal = node.args[1], node.target is aten.eq.Scalar
    if inner is None or isinstance(number, fx.Node):
        return None
    if number == 0:
        return not inner if equal else inner
    if number == 1 and _ones_within(node.args[0]):
        return inner if equal else not inner
    return None


def _ones_within(node: Any) -> bool:
    """Whether a triangle or truth value is 1 where it is not 0."""
    for _ in range(tuning.MAX_MASK_DEPTH):
        if _is_bool(node):
            return True
        if not isinstance(node, fx.Node):
            return False
        if node.target in (aten.tril.default, aten.triu.default):
            return literal(node.args[0]) == 1.0
        if node.target not in ONE_SOURCE and node.target not in SPREADING and not _keeps_truth(node):
            return False
        node = node.args[0]
    return False


def _triangle(node: fx.Node) -> bool | None:
    """Which triangle of a constant matrix `tril` or `triu` keeps; values as of `hides_future`."""
    value, diagonal = literal(node.args[0]), argument(node, 1)
    if value is None or not abs(value) >= 1:
        return None
    if node.target is aten.tril.default:
        return False if diagonal == 0 and isinstance(diagonal, int) else None
    return True if diagonal == 1 and isinstance(diagonal, int) else None


def _compared_lines(node: fx.Node) -> bool | None:
    """A comparison of positions along the keys with positions along the rows."""
    inclusive, below = COMPARISONS[node.target]  # type: ignore[index]
    left, right = _line(node.args[0]), _line(node.args[1])
    if left is None or right is None or {left[0], right[0]} != {-1, -2}:
        return None
    if left[0] == -2:
        left, right, below = right, left, not below
    # `key + left <= row + right`, or another comparison
    difference = right[1] - left[1]
    if below:
        return False if difference == (0 if inclusive else 1) else None
    return True if difference == (1 if inclusive else 0) else None


def _line(node: Any) -> tuple[int, int] | None:
    """(dim from the right, first number) of integers that count by one along that dim only."""
    offset = 0
    steps: list[fx.Node] = []
    for _ in range(tuning.MAX_MASK_DEPTH):
        if not isinstance(node, fx.Node) or node.op != "call_function":
            return None
        if node.target in (aten.arange.default, aten.arange.start, aten.arange.start_step):
            break
        if node.target in (aten.add.Tensor, aten.sub.Tensor, aten.add.Scalar, aten.sub.Scalar):
            number = node.args[1]
            if type(number) is not int or node.kwargs:
                return None
            offset += number if node.target in (aten.add.Tensor, aten.add.Scalar) else -number
        elif node.target in SPREADING:
            steps.append(node)
        elif node.target not in ONE_SOURCE:
            return None
        node = node.args[0]
    else:
        return None
    start = 0 if node.target is aten.arange.default else node.args[0]
    step = node.args[2] if node.target is aten.arange.start_step and len(node.args) > 2 else 1
    if type(start) is not int or type(step) is not int or step != 1:
        return None
    meta = tensor_meta(node)
    if meta is None or meta.dtype not in (torch.int64, torch.int32):
        return None
    dim = -1
    for view in reversed(steps):
        moved = _moved(view, dim)
        if moved is None:
            return None
        dim = moved
    return dim, start + offset


def _moved(view: fx.Node, dim: int) -> int | None:
    """Where the only long dimension `dim` (from the right) is after a view."""
    before, after = tensor_meta(view.args[0]), tensor_meta(view)
    if before is None or after is None:
        return None
    if view.target is aten.expand.default:
        return dim
    long = [d - after.dim() for d, n in enumerate(after.shape) if not known_equal(n, 1)]
    return long[0] if len(long) == 1 and known_equal(after.shape[long[0]], before.shape[dim]) else None


def _keeps_last_two(node: fx.Node) -> bool:
    if node.target in PERMUTING:
        return False
    return _same_last_two(node, node.args[0])


def _same_last_two(a: Any, b: Any) -> bool:
    x, y = tensor_meta(a), tensor_meta(b)
    return (
        x is not None
        and y is not None
        and x.dim() >= 2
        and y.dim() >= 2
        and known_equal_all(x.shape[-2:], y.shape[-2:])
    )


def is_causal(node: Any, depth: int = 0) -> bool:
    """Whether an additive mask is 0 exactly where key <= row and hides everything else."""
    if depth > tuning.MAX_MASK_DEPTH or not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    target: Any = node.target
    if target in ONE_SOURCE or _keeps_truth(node):
        return is_causal(node.args[0], depth + 1)
    if target in SPREADING:
        return _keeps_last_two(node) and is_causal(node.args[0], depth + 1)
    if target is aten.triu.default:
        value = literal(node.args[0])
        return value is not None and value <= HIDING and _triangle(node) is True
    if target is aten.mul.Tensor:
        return _is_causal_product(node)
    parts = chosen(node)
    if parts is None or not _same_last_two(node, parts[0]):
        return False
    condition, if_true, if_false = parts
    hidden = hides_future(condition)
    if hidden is None:
        return False
    shown, other = (if_false, if_true) if hidden else (if_true, if_false)
    value = literal(other)
    return literal(shown) == 0.0 and value is not None and value <= HIDING


def _is_causal_product(node: fx.Node) -> bool:
    """`(1 - tril(ones)) * -1e9` and `triu(ones, 1) * -1e9`."""
    factor = literal(node.args[1])
    if factor is None or not -math.inf < factor <= HIDING:
        return False
    hidden: Any = node.args[0]
    reverse = isinstance(hidden, fx.Node) and hidden.target is aten.rsub.Scalar
    if reverse:
        if hidden.args[1:] not in ((1,), (1.0,)) or hidden.kwargs:
            return False
        hidden = hidden.args[0]
    return (
        _same_last_two(node, hidden)
        and not _is_bool(hidden)
        and _ones_within(hidden)
        and hides_future(hidden) is not reverse
        and hides_future(hidden) is not None
    )


def chosen(node: fx.Node) -> tuple[Any, Any, Any] | None:
    """(condition, value where set, value elsewhere) of `where` and `masked_fill`."""
    if node.kwargs or len(node.args) != 3:
        return None
    if node.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        x, condition, value = node.args
        return condition, value, x
    if node.target in (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar):
        return node.args
    return None


def never_hides_fully(node: Any, depth: int = 0) -> bool:
    """Whether no element of an additive mask is -inf, whatever the data."""
    number = literal(node)
    if number is not None:
        return number >= -FLOAT32_MAX
    if depth > tuning.MAX_MASK_DEPTH or not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    if node.target in ONE_SOURCE or node.target in SPREADING:
        return never_hides_fully(node.args[0], depth + 1)
    parts = chosen(node)
    return parts is not None and all(never_hides_fully(part, depth + 1) for part in parts[1:])
