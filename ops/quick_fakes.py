"""Quick fake results for frequent operators.

torch's own rules are general and slow with symbolic sizes (milliseconds for `layer_norm`), and some pin sizes that the
operator does not depend on (oneDNN heuristics of `convolution`, broadcasting in `matmul`). Each rule here covers the
common case and gives `None` for the rest, which then takes torch's way, errors included.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_check: Callable[[Any], None] = torch._check
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Register a rule: (fake_mode, *args, **kwargs) -> fake result, or None."""

    def register(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = function
        return function

    return register


def new(
    mode: Any,
    sizes: Sequence[Any],
    like: torch.Tensor,
    strides: Sequence[Any] | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A fake tensor of `like`'s dtype and device, contiguous unless other things are given."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._mode_utils import no_dispatch

    sizes = list(sizes)
    dtype = dtype or like.dtype
    if strides is None:
        strides = contiguous_strides(mode, sizes)
    # A tensor of symbolic sizes takes torch dozens of symbolic operations. Made once, it is copied with a storage of
    # its own, as its identity is what tells aliases.
    templates = mode.__dict__.setdefault("_staticrt_templates", {})
    key = (dtype, *map(_expr, sizes), *map(_expr, strides))
    with no_dispatch():
        template = templates.get(key)
        if template is None:
            template = templates[key] = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        meta = torch._lazy_clone(template)
    return FakeTensor(mode, meta, like.device)


def _expr(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def contiguous_strides(mode: Any, sizes: Sequence[Any]) -> list[Any]:
    """Row-major strides; equal sizes share the symbolic products, which are slow to build."""
    cache = mode.__dict__.setdefault("_staticrt_strides", {})
    key = tuple(map(_expr, sizes))
    found = cache.get(key)
    if found is None:
        found = []
        stride: Any = 1
        for size in reversed(sizes):
            found.append(stride)
            stride = stride * (max(size, 1) if isinstance(size, int) else size)
        cache[key] = found = found[::-1]
    return list(found)


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal as expressions, whatever the symbols are."""
    x, y = _expr(a), _expr(b)
    if x == y:
        return True
    if isinstance(x, int) or isinstance(y, int):
        return False
    return bool(_expanded(x) == _expanded(y))


@functools.lru_cache(maxsize=4096)
def _expanded(expr: Any) -> Any:
    import sympy

    return sympy.expand(expr)


@functools.lru_cache(maxsize=4096)
def _without_floors(expr: Any) -> Any:
    """An expression with `Max(1, size)` read as `size`, as torch writes strides of sizes that may be 0."""
    import sympy
    from torch.utils._sympy.functions import Max

    if not expr.has(Max):
        return expr
    kept = expr.replace(
        lambda part: isinstance(part, Max) and len(part.args) == 2 and part.args[0] == 1,
        lambda part: part.args[1],
    )
    return sympy.expand(kept)


def same_stride(a: Any, b: Any) -> bool:
    """Whether two strides are equal wherever no size is 0; strides of empty tensors mean nothing."""
    if same(a, b):
        return True
    x, y = _expr(a), _expr(b)
    if isinstance(x, int) or isinstance(y, int):
        return False
    return bool(_expanded(_without_floors(x)) == _expanded(_without_floors(y)))


def agree(a: Any, b: Any) -> bool:
    """Whether two sizes are equal, guarding on it where both are the caller's."""
    if same(a, b):
        return True
    hints = [size.node.hint if isinstance(size, torch.SymInt) else size for size in (a, b)]
    if None in hints or hints[0] != hints[1]:
        return False
    _check(a == b)
    return True


def is_contiguous(x: torch.Tensor) -> bool:
    """Whether the strides are row-major as expressions: decided without guards."""
    strides = x.stride()
    return all(map(same_stride, strides, contiguous_strides(x.fake_mode, x.shape)))  # type: ignore[attr-defined]


def format_strides(x: torch.Tensor, sizes: Sequence[Any]) -> list[Any] | None:
    """Strides for `sizes` in the memory format of `x`: row-major, or channels last; None for another layout."""
    mode = x.fake_mode  # type: ignore[attr-defined]
    if is_contiguous(x):
        return contiguous_strides(mode, sizes)
    if x.dim() not in (4, 5):
        return None
    if not all(map(same_stride, x.stride(), channels_last_strides(mode, x.shape))):
        return None
    return channels_last_strides(mode, sizes)


def channels_last_strides(mode: Any, sizes: Sequence[Any]) -> list[Any]:
    """Strides of a dense image, (batch, channels, height, width) or with a depth, whose channels are adjacent."""
    batch, channels, *spatial = sizes
    strides = contiguous_strides(mode, [batch, *spatial, channels])
    return [strides[0], strides[-1], *strides[1:-1]]


@functools.cache
def _load_rules() -> None:
    for name in ("quick_fake_rules", "quick_fake_pointwise", "quick_fake_images", "quick_fake_quantized"):
        importlib.import_module(f"staticrt.ops.{name}")


def quick_fake(mode: Any, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `op` returns for fake arguments, if a rule covers them; else None.

    Args:
        mode: the FakeTensorMode of the result, not entered.

    Raises:
        RuntimeError: the arguments do not fit together.
    """
    _load_rules()
    found = RULES.get(op)
    return None if found is None else found(mode, *args, **kwargs)
