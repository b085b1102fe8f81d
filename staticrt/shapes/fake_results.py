"""Makes fake results and registers the rules that make them; `fake_rules.py` finds the rule of an operator."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from staticrt.shapes import size_expr
from staticrt.shapes.size_checks import check as _check

Rule = Callable[..., Any]
RULES: dict[Any, Rule | None] = {}
# Device types that run the CPU's operators: strides of results are the CPU's.
cpu_kernels = {"cpu"}

_NORMAL = (int, size_expr.Expr)  # equal values have one form
_SymInt = torch.SymInt  # asked of each size of each result


class Unknown(Exception):
    """No rule knows the result: torch's rule decides, or raises the error."""


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Register a rule: (fake_mode, *args, **kwargs) -> fake result; None, or `Unknown` raised, where it knows none."""

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
    return fresh(mode, sizes, strides, dtype or like.dtype, like.device)


def fresh(
    mode: Any, sizes: Sequence[Any], strides: Sequence[Any] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A fake tensor of its own, contiguous unless strides are given."""
    sizes = list(sizes)
    if strides is None:
        strides = contiguous_strides(mode, sizes)
    templates = mode.__dict__.setdefault("_staticrt_templates", {})
    key = (dtype, *map(expression, sizes), *map(expression, strides))
    with below():
        template = templates.get(key)
        if template is None:
            template = templates[key] = _template(sizes, strides, dtype)
        # A storage of its own: aliases are found by the identity of their storage.
        return fake_of(mode, torch._lazy_clone(template), device)


def _template(sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor. With symbolic sizes its storage claims 0 bytes, because torch takes milliseconds to count them."""
    if not any(isinstance(size, torch.SymInt) for size in (*sizes, *strides)):
        return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    return torch.as_strided(torch.empty(0, dtype=dtype, device="meta"), sizes, strides)


def view_of(
    mode: Any, x: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any], offset: Any = 0
) -> torch.Tensor:
    """A fake view of `x`.

    Args:
        offset: where it begins, in elements after the beginning of `x`.
    """
    own = x.storage_offset()
    if not (isinstance(offset, int) and offset == 0):
        own = offset if isinstance(own, int) and own == 0 else own + offset
    with below():
        return fake_of(mode, torch.as_strided(_meta(x), list(sizes), list(strides), own), x.device)


def on_device(mode: Any, x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor like `x` on the same storage that reports another device."""
    with below():
        meta = torch.as_strided(_meta(x), list(x.shape), list(x.stride()), x.storage_offset())
        return fake_of(mode, meta, device)


def reread(
    mode: Any, x: torch.Tensor, dtype: torch.dtype, sizes: Sequence[Any], strides: Sequence[Any], offset: Any
) -> torch.Tensor:
    """A fake view of the memory of `x` as another dtype; strides and offset count elements of that dtype."""
    with below():
        meta = torch.empty(0, dtype=dtype, device="meta").set_(x.untyped_storage(), 0, (0,), (1,))  # type: ignore[call-overload]
        return fake_of(mode, torch.as_strided(meta, list(sizes), list(strides), offset), x.device)


def fake_of(mode: Any, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake of a meta tensor; torch's constructor, most of the time of a rule, makes the first of a mode and device."""
    from torch._subclasses.fake_tensor import FakeTensor

    attributes = mode.__dict__.setdefault("_staticrt_attributes", {})
    fake: torch.Tensor
    if device not in attributes or not mode._allow_unsafe_data_ptr_access:
        fake = FakeTensor(mode, meta, device)
        attributes[device] = dict(fake.__dict__)
    else:
        fake = torch.Tensor._make_subclass(
            FakeTensor, meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
        fake.__dict__.update(attributes[device])
    fake.__dict__["_staticrt_meta"] = meta
    return fake


def _meta(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor on the memory of a fake one; operators on the fake itself would look for other subclasses."""
    meta: torch.Tensor | None = x.__dict__.get("_staticrt_meta")
    storage = x.untyped_storage()
    if meta is None or meta.untyped_storage()._cdata != storage._cdata:
        meta = torch.empty(0, dtype=x.dtype, device="meta").set_(storage, 0, (0,), (1,))  # type: ignore[call-overload]
        x.__dict__["_staticrt_meta"] = meta
    return meta


@contextlib.contextmanager
def below() -> Iterator[None]:
    """Operators on meta tensors run their kernels: below autograd, modes and decompositions."""
    guard = torch._C._DisableTorchDispatch()  # until it is gone
    try:
        with torch._C._DisablePythonDispatcher(), torch._C._AutoDispatchBelowAutograd():
            yield
    finally:
        del guard


def oblivious() -> bool:
    """Whether symbolic sizes of 0 and 1 are treated like any other size."""
    from torch.fx.experimental import _config

    return bool(_config.backed_size_oblivious)  # type: ignore[attr-defined]


def product(mode: Any, factors: Sequence[Any]) -> Any:
    """The product of sizes; equal factors share the symbolic result, which is slow to build."""
    known = 1
    symbolic = []
    for factor in factors:
        if isinstance(factor, int):
            known *= factor
        else:
            symbolic.append(factor)
    if not symbolic or known == 0:
        return known
    if len(symbolic) == 1 and known == 1:
        return symbolic[0]
    cache = mode.__dict__.setdefault("_staticrt_products", {})
    key = (known, *map(expression, symbolic))
    found = cache.get(key)
    if found is None:
        found = symbolic[0]
        for factor in symbolic[1:]:
            found = found * factor
        cache[key] = found = found * known if known != 1 else found
    return found


def cached_values(mode: Any) -> Iterator[Any]:
    """Each reference to a fake tensor or symbolic size that the caches of a fake mode hold."""
    for name in ("_staticrt_products", "_staticrt_windows"):
        yield from mode.__dict__.get(name, {}).values()
    for strides in mode.__dict__.get("_staticrt_strides", {}).values():
        yield from strides
    for _kind, results in mode.__dict__.get("_staticrt_memo", {}).values():
        for result in results:
            yield from (result.like, *result.sizes, *result.strides, result.offset)


def expression(size: Any) -> Any:
    """What a size is compared by: a number or a sympy expression."""
    return size.node.expr if isinstance(size, _SymInt) else size


def contiguous_strides(mode: Any, sizes: Sequence[Any]) -> list[Any]:
    """Row-major strides; equal sizes share the symbolic products, which are slow to build."""
    cache = mode.__dict__.setdefault("_staticrt_strides", {})
    key = tuple(map(expression, sizes))
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
    """Whether two sizes are equal as expressions, so for all values of the symbols."""
    if type(a) is int and type(b) is int:
        return a == b
    x, y = expression(a), expression(b)
    if x == y:
        return True
    if isinstance(x, _NORMAL) or isinstance(y, _NORMAL):
        return False
    return bool(_expanded(x) == _expanded(y))


@functools.lru_cache(maxsize=4096)
def _expanded(expr: Any) -> Any:
    import sympy

    return sympy.expand(expr)


@functools.lru_cache(maxsize=4096)
def _without_floors(expr: Any) -> Any:
    """An expression with `size` for `Max(1, size)`, which torch writes in strides where a size may be 0."""
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
    """Whether two strides are equal where no size is 0; strides of empty tensors have no meaning."""
    if same(a, b):
        return True
    x, y = expression(a), expression(b)
    if isinstance(x, _NORMAL) or isinstance(y, _NORMAL):
        return False
    return bool(_expanded(_without_floors(x)) == _expanded(_without_floors(y)))


def view_strides(
    mode: Any,
    sizes: Sequence[Any],
    strides: Sequence[Any],
    wanted: Sequence[Any],
    equal: Callable[[Any, Any], bool] = same,
    equal_strides: Callable[[Any, Any], bool] = same_stride,
) -> list[Any] | None:
    """The strides of a view of other sizes, as `computeStride` of aten/src/ATen/TensorUtils.cpp.

    Args:
        sizes, strides: of the tensor that is viewed; no size is 0.
        wanted: the sizes of the view.
        equal, equal_strides: compare sizes and strides. `operator.eq` adds guards; the default adds none.

    Returns:
        None: there is no such view, or the comparisons do not say so.
    """
    found: list[Any] = [1] * len(wanted)
    if not sizes:
        return found if all(equal(size, 1) for size in wanted) else None
    at, base = len(wanted) - 1, strides[-1]
    block: list[Any] = []  # the sizes of dimensions that lie one behind the other in memory
    for dim in reversed(range(len(sizes))):
        block.append(sizes[dim])
        if dim > 0 and (
            equal(sizes[dim - 1], 1) or equal_strides(strides[dim - 1], product(mode, [*block, base]))
        ):
            continue
        elements, covered = product(mode, block), 1
        while at >= 0 and (not equal(covered, elements) or equal(wanted[at], 1)):
            found[at] = product(mode, [covered, base])
            covered = product(mode, [covered, wanted[at]])
            at -= 1
        if not equal(covered, elements):
            return None
        if dim > 0:
            base, block = strides[dim - 1], []
    return found if at == -1 else None


def agree(a: Any, b: Any) -> bool:
    """Whether two sizes are equal. Adds a guard where only the sizes of this call say so; never asks data."""
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
