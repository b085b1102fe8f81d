"""What a trace is chosen by, apart from sizes: arguments' kinds and the state of the process."""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from staticrt import torch_private
from staticrt.frontend.arguments.fakes import layout_of
from staticrt.frontend.arguments.structure import repeated
from staticrt.frontend.guards.process_state import process_state

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_VALUES = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_PLAIN_VALUES = frozenset(_VALUES)


class Identity:
    """A leaf compared by identity. Does not keep it alive, where that is possible."""

    __slots__ = ("_hash", "_strong", "weak")

    def __init__(self, value: Any) -> None:
        self.weak = weak_reference(value)
        self._strong = value if self.weak is None else None
        self._hash = id(value)

    @property
    def value(self) -> Any:
        """The leaf; None once it is gone."""
        return self._strong if self.weak is None else self.weak()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Identity) and self.value is other.value and self.value is not None

    def __hash__(self) -> int:
        return self._hash


def weak_reference(
    leaf: Any, gone: Callable[[weakref.ref[Any]], None] | None = None
) -> weakref.ref[Any] | None:
    """A weak reference to a leaf that is compared by identity. None for what has none, or lives for one call only.

    Args:
        gone: called when the leaf goes.
    """
    if isinstance(leaf, (*_VALUES, torch.Tensor, types.MethodType)):
        return None
    try:
        return weakref.ref(leaf, gone)
    except TypeError:
        return None


class EagerOnly(Exception):
    """This call must run eagerly; the message says why."""


@dataclasses.dataclass(frozen=True)
class CallKey:
    """Key of a call, and its int arguments apart (they may become symbols)."""

    key: tuple[Any, ...]
    ints: tuple[tuple[int, int], ...]
    needs_grad: bool


def needs_gradients(values: Iterable[Any]) -> bool | None:
    """Whether any of these arguments requires gradients; None if one is not a plain tensor or value: `call_key` says."""
    found = False
    for value in values:
        if type(value) in _PLAIN:
            if torch_private.oddness(value):
                return None
            found = found or value.requires_grad
        elif type(value) not in _PLAIN_VALUES:
            return None
    return found


def call_key(leaves: Sequence[Any], spec: Any) -> CallKey:
    """The key of a call from its flat arguments.

    Raises:
        EagerOnly: an argument that no trace takes.
    """
    parts: list[Any] = []
    ints: list[tuple[int, int]] = []
    grad = False
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in _PLAIN:
                raise EagerOnly(f"an argument is a tensor subclass, {type(leaf).__name__}")
            if odd := torch_private.oddness(leaf):
                raise EagerOnly(f"an argument is {odd}")
            if leaf.requires_grad:
                grad = True
            parts.append(
                (
                    leaf.dtype,
                    leaf.device,
                    leaf.dim(),
                    layout_of(leaf),
                    leaf.requires_grad,
                    type(leaf),
                    leaf.is_inference(),
                )
            )
        elif type(leaf) is int:
            if leaf.bit_length() > 63:
                raise EagerOnly("an argument is a number of more than 64 bits")
            ints.append((index, leaf))
            parts.append(int)
        elif type(leaf) is float:
            parts.append((float, repr(leaf)))
        elif isinstance(leaf, _VALUES):
            parts.append((type(leaf), leaf))
        elif type(leaf).__module__ == "numpy":
            raise EagerOnly(f"an argument is numpy's {type(leaf).__name__}")
        elif isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise EagerOnly("an argument is a symbolic number")
        elif hasattr(type(leaf), "__next__"):
            raise EagerOnly("an argument is an iterator, which a call consumes")
        elif isinstance(leaf, (set, frozenset)) and any(isinstance(item, torch.Tensor) for item in leaf):
            raise EagerOnly("an argument is a set of tensors, whose order differs between calls")
        else:
            parts.append(Identity(leaf))
    state = (process_state(), repeated(leaves), _empty_dims(leaves))
    return CallKey((spec, state, *parts), tuple(ints), grad and torch.is_grad_enabled())


def _empty_dims(leaves: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """(index, dims of size 0) of each empty tensor: models ask `if x.numel()`, and no other size is special."""
    return tuple(
        (index, *(dim for dim, size in enumerate(leaf.shape) if size == 0))
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and 0 in leaf.shape
    )


def eager_reason() -> str | None:
    """Why no call may be compiled just now, or None."""
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    if torch.is_autocast_enabled("privateuseone"):  # whatever name the backend has
        return f"torch.autocast({torch.device('privateuseone').type!r}) is on, whose casts are not traced"
    if torch._C._len_torch_function_stack():
        return "a torch function mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform is active"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    # Dynamo and torch.export set that flag for all threads; what they trace they keep for their own.
    if torch.compiler.is_compiling() and torch._guards.TracingContext.try_get() is not None:
        return "torch.compile or torch.export is tracing"
    if torch_private.fx_is_tracing():
        return "torch.fx is tracing"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return None
