"""Functional forms of operators that write, and inverses of views.

Both are called under a tracer, so they are written as plain operator calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from staticrt.frontend.reasons import CannotTrace

aten = torch.ops.aten

# Written out where the functional overload has another name.
_NAMES: dict[str, str] = {
    "aten::bernoulli_.float": "aten::bernoulli.p",
    "aten::normal_": "aten::normal_functional",
    "aten::_native_batch_norm_legit": "aten::_native_batch_norm_legit_functional",
    "aten::_index_put_impl_": "aten::index_put",
}
_UNSUPPORTED = frozenset(
    {"aten::resize_", "aten::set_", "aten::resize_as_", "aten::as_strided_", "aten::swapaxes_"}
)


@functools.cache
def _functional_overload(func: Any) -> Any:
    """The overload that returns what `func` writes."""
    schema = func._schema
    name = schema.name
    full = name + ("." + schema.overload_name if schema.overload_name else "")
    if name in _UNSUPPORTED:
        raise CannotTrace(f"{name} changes a tensor's memory")
    if full in _NAMES:
        return _lookup(_NAMES[full])
    namespace, base = name.split("::")
    packet = getattr(getattr(torch.ops, namespace), base[:-1] if base.endswith("_") else base, None)
    if packet is None:
        raise CannotTrace(f"{full} has no functional form")
    wanted = [(arg.name, str(arg.type)) for arg in schema.arguments if not arg.is_out]
    for overload in sorted(packet.overloads(), key=lambda o: o != schema.overload_name):
        candidate = getattr(packet, overload)
        found = [(arg.name, str(arg.type)) for arg in candidate._schema.arguments]
        if found == wanted and not candidate._schema.is_mutable:
            return candidate
    raise CannotTrace(f"{full} has no functional form")


def _lookup(name: str) -> Any:
    namespace, rest = name.split("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def functional_form(func: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Call the functional form of an operator that writes.

    Returns:
        The new contents of the written arguments, in schema order, and the operator's other results.

    Raises:
        CannotTrace: it has none.
    """
    schema = func._schema
    functional = _functional_overload(func)
    given = {argument.name for argument in schema.arguments[: len(args)]} | kwargs.keys()
    wanted = {argument.name for argument in functional._schema.arguments if not argument.has_default_value()}
    # A number that is the default is not handed to the tracer: of `bernoulli_(0.5)`, where `bernoulli` asks for it.
    kwargs = kwargs | {
        argument.name: argument.default_value
        for argument in schema.arguments
        if argument.name in wanted - given and argument.has_default_value()
    }
    outs = [arg for arg in schema.arguments if arg.is_out]
    if outs:
        kwargs = dict(kwargs)
        targets = [kwargs.pop(arg.name) for arg in outs]
        result = functional(*args, **kwargs)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        for target, value in zip(targets, results, strict=True):
            if len(target.shape) != len(value.shape) or any(
                a != b for a, b in zip(target.shape, value.shape, strict=True)
            ):
                raise CannotTrace(f"out= of {schema.name} would be resized")
            if target.dtype != value.dtype:  # some operators then compute in that dtype, others refuse it
                raise CannotTrace(f"out= of {schema.name} has another dtype", even_in_parts=True)
        return results, results
    if schema.name == "aten::_native_batch_norm_legit":
        out, mean, inverse_std, new_mean, new_var = functional(*args, **kwargs)
        return [new_mean, new_var], [out, mean, inverse_std]
    if schema.name == "aten::_amp_foreach_non_finite_check_and_unscale_":
        results = _unscaled(*args, **kwargs)
        return results, results
    if schema.name == "aten::_index_put_impl_":
        args = args[:4]
        kwargs.pop("unsafe", None)
    result = functional(*args, **kwargs)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    return results, results


def _unscaled(
    tensors: list[torch.Tensor], found_inf: torch.Tensor, inverse_scale: torch.Tensor
) -> list[torch.Tensor]:
    """The tensors times a number, and 1 if an element is infinite or NaN; torch's own returns a list in a tuple."""
    for tensor in tensors:
        if tensor.numel():
            finite = aten.isfinite.default(aten.amax.default(aten.abs.default(tensor)))
            found_inf = aten.where.ScalarOther(finite, found_inf, 1.0)
    return [*(aten.mul.Tensor(tensor, inverse_scale) for tensor in tensors), found_inf]


# view -> function of (source's value, new value of the view, other args, kwargs) that gives the source's new value
_Inverse = Callable[[Any, Any, list[Any], dict[str, Any]], Any]


def _reshape(base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return aten.reshape.default(value, base.shape)


def _same(base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return value


def _permute(base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    dims = [dim % base.dim() for dim in args[0]]
    return aten.permute.default(value, sorted(range(len(dims)), key=dims.__getitem__))


def _split(base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    size, *rest, index = args
    dim = rest[0] if rest else kwargs.get("dim", 0)
    start = size * index
    return aten.slice_scatter.default(base, value, dim, start, start + value.shape[dim])


def _split_with_sizes(base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    sizes, *rest, index = args
    dim = rest[0] if rest else kwargs.get("dim", 0)
    start = sum(sizes[:index])
    return aten.slice_scatter.default(base, value, dim, start, start + sizes[index])


def _unbind(base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    *rest, index = args
    return aten.select_scatter.default(base, value, rest[0] if rest else kwargs.get("dim", 0), index)


_INVERSES: dict[Any, _Inverse] = {
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten._reshape_alias.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.transpose.int: lambda base, value, args, kwargs: aten.transpose.int(value, args[0], args[1]),
    aten.t.default: lambda base, value, args, kwargs: aten.t.default(value),
    aten.permute.default: _permute,
    aten.select.int: lambda base, value, args, kwargs: aten.select_scatter.default(
        base, value, *args, **kwargs
    ),
    aten.slice.Tensor: lambda base, value, args, kwargs: aten.slice_scatter.default(
        base, value, *args, **kwargs
    ),
    aten.diagonal.default: lambda base, value, args, kwargs: aten.diagonal_scatter.default(
        base, value, *args, **kwargs
    ),
    aten.as_strided.default: lambda base, value, args, kwargs: aten.as_strided_scatter.default(
        base, value, *args, **kwargs
    ),
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
    aten.view_as_real.default: lambda base, value, args, kwargs: aten.view_as_complex.default(
        aten.clone.default(value, memory_format=torch.contiguous_format)
    ),
    aten.view_as_complex.default: lambda base, value, args, kwargs: aten.view_as_real.default(value),
}


def inverse_view(view: Any, base: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The new value of `base` after `value` is written through `view(base, *args, **kwargs)`.

    For a view with several results the last of `args` is the result's index.

    Raises:
        CannotTrace: the view has no inverse here (`expand`, `unfold`).
    """
    inverse = _INVERSES.get(view)
    if inverse is None:
        raise CannotTrace(f"a write through {view}")
    return inverse(base, value, args, kwargs)
