"""The `torch.export` form of a compiled model, which makes an archive readable without staticrt."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import Dim

from staticrt.frontend.arguments.structure import Builder, Structure
from staticrt.runtime.cached_trace import CachedTrace

# A size that torch.export does not specialise on, as it does on 0 and 1.
_PLAIN_SIZE = 3


def _as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """Wrap a function as a module, as torch.export requires, with its signature."""
    if isinstance(function, torch.nn.Module):
        return function
    module = torch.nn.Module()
    module.forward = function
    return module


def export(
    function: Callable[..., Any], entry: CachedTrace, parts: Sequence[Any]
) -> torch.export.ExportedProgram:
    """Export the call that `entry` traced. Sizes that are symbols in the trace become dynamic.

    Args:
        function: the module or function.
        entry: a trace of it.
        parts: the leaves' part of the trace's key.

    Raises:
        Exception: any error of torch.export.
    """
    traced = entry.traced
    module = _as_module(function)
    leaves = example_leaves(entry, parts)
    args, kwargs = Builder(leaves).build(traced.in_spec)
    fixed = {(symbol.leaf, symbol.dim) for symbol in traced.guards.symbols if symbol.name[0] in "dt"}
    dynamic = {(s.leaf, s.dim) for s in traced.guards.symbols if s.prop == "size"} - fixed
    shapes = [
        {dim: Dim.AUTO if (index, dim) in dynamic else Dim.STATIC for dim in range(leaf.dim())}
        if isinstance(leaf, torch.Tensor)
        else None
        for index, leaf in enumerate(leaves)
    ]
    args_shapes, kwargs_shapes = Builder(shapes).build(traced.in_spec)
    with torch.no_grad():
        return torch.export.export(
            module,
            args,
            kwargs,
            dynamic_shapes=_by_name(module, args_shapes, kwargs_shapes, traced.in_spec),
            strict=False,
        )


def _by_name(module: torch.nn.Module, args: Any, kwargs: Any, spec: Structure) -> Any:
    # With keyword arguments or *args, torch.export expects a dict by parameter name.
    signature = inspect.signature(module.forward)
    if not kwargs and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return args
    bound = signature.bind_partial(*args, **kwargs)
    return dict(bound.arguments)


def example_leaves(entry: CachedTrace, parts: Sequence[Any]) -> list[Any]:
    """Example arguments of the trace: zeros of its sizes, and its constants."""
    traced = entry.traced
    placeholders = traced.module.graph.find_nodes(op="placeholder")
    values = dict(zip(traced.inputs, (node.meta["val"] for node in placeholders), strict=True))
    fakes = {int(spec.target): value for spec, value in values.items() if spec.kind == "user"}
    ints = dict(entry.ints)
    usual: list[Any] = []
    grown: list[Any] = []
    for index, part in enumerate(parts):
        if index in fakes and isinstance(fakes[index], torch.Tensor):
            sizes = [int(s.node.hint) if isinstance(s, torch.SymInt) else s for s in fakes[index].shape]
            larger = [
                _PLAIN_SIZE if isinstance(symbol, torch.SymInt) and size < 2 else size
                for symbol, size in zip(fakes[index].shape, sizes, strict=True)
            ]
            usual.append(_zeros(sizes, fakes[index]))
            grown.append(_zeros(larger, fakes[index]))
            continue
        value = ints.get(index, 2) if part is int else _constant(part)
        usual.append(value)
        grown.append(value)
    return grown if traced.guards.holds(grown) else usual


def _zeros(sizes: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(list(sizes), dtype=like.dtype, device=like.device)


def _constant(part: Any) -> Any:
    kind, value = part
    return float(value) if kind is float else value
