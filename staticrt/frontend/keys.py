"""What a capture is chosen by, apart from sizes: arguments' kinds and the state of the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from staticrt.frontend.fakes import layout_of
from staticrt.frontend.structure import repeated

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_VALUES = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_PLAIN_VALUES = frozenset(_VALUES)


class Identity:
    """A leaf compared by identity; holds it, so that its id stays its own."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class EagerOnly(Exception):
    """This call must run eagerly; the message says why."""


@dataclasses.dataclass(frozen=True)
class CallKey:
    """Key of a call, and its int arguments apart (they may become symbols)."""

    key: tuple[Any, ...]
    ints: tuple[tuple[int, int], ...]
    needs_grad: bool


def needs_gradients(values: Iterable[Any]) -> bool | None:
    """Whether any of these arguments requires gradients; None if one is no plain tensor or value: `call_key` says."""
    found = False
    for value in values:
        if type(value) in _PLAIN:
            if value.layout != torch.strided or value.is_quantized or value.is_nested:
                return None
            if value.is_conj() or value.is_neg():
                return None
            found = found or value.requires_grad
        elif type(value) not in _PLAIN_VALUES:
            return None
    return found


def call_key(leaves: Sequence[Any], spec: Any) -> CallKey:
    """The key of a call from its flat arguments.

    Raises:
        EagerOnly: an argument that no capture takes.
    """
    parts: list[Any] = []
    ints: list[tuple[int, int]] = []
    grad = False
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in _PLAIN:
                raise EagerOnly(f"an argument is a tensor subclass, {type(leaf).__name__}")
            if leaf.layout != torch.strided or leaf.is_quantized or leaf.is_nested:
                raise EagerOnly(f"an argument has layout {leaf.layout}")
            if leaf.is_conj() or leaf.is_neg():
                raise EagerOnly("an argument is a lazy conjugate or negative")
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
        else:
            parts.append(Identity(leaf))
    state = (*environment(), repeated(leaves), _empty_dims(leaves))
    return CallKey((spec, state, *parts), tuple(ints), grad and torch.is_grad_enabled())


def _empty_dims(leaves: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """(index, dims of size 0) of each empty tensor: models ask `if x.numel()`, and no other size is special."""
    return tuple(
        (index, *(dim for dim, size in enumerate(leaf.shape) if size == 0))
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and 0 in leaf.shape
    )


def environment() -> tuple[Any, ...]:
    """The process state that decides what eager would compute."""
    cpu, cuda = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_autocast_dtype("cpu") if cpu else None,
        torch.get_autocast_dtype("cuda") if cuda else None,
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_cudnn_allow_tf32(),
        torch.get_float32_matmul_precision(),
    )


def eager_reason() -> str | None:
    """Why no call may be compiled just now, or None."""
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    if torch._C._len_torch_function_stack():
        return "a torch function mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a functorch transform is active"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    if torch.compiler.is_compiling():
        return "torch.compile or torch.export is tracing"
    if torch.fx._symbolic_trace._is_fx_tracing_flag:
        return "torch.fx is tracing"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return None
