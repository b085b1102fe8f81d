"""Readable names of a call's flat arguments: "x", "cache[0]", "batch['mask']"."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.frontend.reasons import raise_interrupt


def argument_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], leaves: int
) -> tuple[str, ...]:
    """One name per leaf, in pytree order; () where a structure is not pytree's own.

    Args:
        leaves: how many leaves the caller counts.
    """
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except Exception as error:  # a class's `__getattr__`, asked for special names, may raise anything
        raise_interrupt(error)
        return ()
    own = vars(function).get("input_names") if isinstance(function, torch.nn.Module) else None
    names: list[str] = []
    for index, value in enumerate(args):
        names += _leaf_names(_positional(parameters, index, own), value)
    for key, value in kwargs.items():
        names += _leaf_names(key, value)
    return tuple(names) if len(names) == leaves else ()


def named_like(wrapper: Any, function: Callable[..., Any]) -> str:
    """Name a wrapper like the function that it wraps.

    The `__getattr__` of an object's class is not asked: it may answer to any name, or raise any error.

    Returns:
        The function's qualified name.
    """
    told: Sequence[str] = functools.WRAPPER_ASSIGNMENTS
    if hasattr(type(function), "__getattr__"):
        for name in told:
            with contextlib.suppress(Exception):
                setattr(wrapper, name, object.__getattribute__(function, name))
        told = ()
    functools.update_wrapper(wrapper, function, assigned=told)
    return str(vars(wrapper).get("__qualname__", type(function).__qualname__))


def _positional(parameters: list[inspect.Parameter], index: int, own: tuple[str, ...] | None) -> str:
    for place, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names = () if own is None else own
            return names[index] if index < len(names) else f"{parameter.name}[{index - place}]"
        if place == index:
            return parameter.name
    return f"argument {index}"


def _leaf_names(name: str, value: Any) -> list[str]:
    if isinstance(value, torch.Tensor):
        return [name]
    try:
        return [name + path for path, _leaf in leaf_paths(value)]
    except RecursionError:  # a container that holds itself, which pytree follows without end
        return []


def leaf_paths(value: Any) -> list[tuple[str, Any]]:
    """Leaves with their places, such as "['a'][0]"; numbered where a registered container names none of its parts."""
    try:
        return [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0]]
    except ValueError:  # it was registered without flatten_with_keys_fn
        return [(f"[{number}]", leaf) for number, leaf in enumerate(pytree.tree_leaves(value))]
