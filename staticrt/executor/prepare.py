"""`compiled.prepare(...)`: everything a call needs before it runs, done ahead of the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError
from staticrt.frontend.arguments.structure import Flattener
from staticrt.runtime.cached_trace import CachedTrace, Failure
from staticrt.runtime.call import Call
from staticrt.runtime.call_key import EagerOnly, eager_reason


@dataclasses.dataclass(frozen=True)
class Readiness:
    """What `prepare` could do ahead of a call.

    Attributes:
        ready: the next such call runs a prepared program.
        reason: why not; "" where it does.
        arena_bytes: planned memory of one such call at its peak, without results; None if not ready.
        lower_bound_bytes: the most bytes in use at once, which every plan needs; None if not ready.
        packed_bytes: bytes of weights held in another form for its kernels; None if not ready.
        raised: not ready because the model raised on such arguments.
    """

    ready: bool
    reason: str = ""
    arena_bytes: int | None = None
    lower_bound_bytes: int | None = None
    packed_bytes: int | None = None
    raised: bool = False

    def __bool__(self) -> bool:
        return self.ready

    def __str__(self) -> str:
        if not self.ready:
            return f"not ready: {self.reason}"
        return (
            f"ready: arena {self.arena_bytes} bytes (lower bound {self.lower_bound_bytes}), "
            f"packed weights {self.packed_bytes} bytes"
        )


def example_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, given as a tuple or list of them, a dict of keyword arguments, or one tensor."""
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, dict):
        return (), dict(example)
    kind = type(example).__name__
    raise InputError(f"example inputs are a tuple, a list, a dict or a tensor, got {kind}", fix="pass (x,)")


class ArgumentsChanged(Exception):
    """The argument structure changed: flatten the call again and retry."""


class MakesTraces(Protocol):
    """What `prepare` needs of an executor."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a trace is made."""

    def wants_gradients(self) -> bool:
        """Whether the function has parameters that require gradients."""

    def trace_for(self, call: Call) -> CachedTrace | Failure:
        """The trace that serves a call, or why there is none."""


def prepare(executor: MakesTraces, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Readiness:
    """Trace for these arguments and plan for their sizes, without running the model on them."""
    args, kwargs = with_bytes(args, kwargs)
    # A call that needs gradients is traced when it is made; this prepares for calls that record none.
    needs_grad = torch.is_grad_enabled() and (executor.wants_gradients() or _require_grad(args, kwargs))
    while True:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not needs_grad), executor.lock:
            reason = eager_reason()  # under the lock, so that no other thread is tracing
            if reason is not None:
                return Readiness(False, reason)
            try:
                call = Call.of(args, kwargs)
                trace = executor.trace_for(call)
            except EagerOnly as error:
                return Readiness(False, str(error))
            except ArgumentsChanged:
                continue
            except TypeError:
                return Readiness(False, "an argument is neither a tensor nor hashable")
        if isinstance(trace, Failure):
            return Readiness(False, f"not traced whole: {trace.reason}", raised=not trace.impossible)
        return _plan(trace, call.leaves)


def _require_grad(args: Any, kwargs: Any) -> bool:
    flattener = Flattener()  # not a Call: it would be keyed with gradients on
    flattener.flatten((args, kwargs))
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in flattener.leaves)


def _plan(trace: CachedTrace, leaves: Sequence[Any]) -> Readiness:
    if trace.traced.decided:
        return Readiness(False, "data decides which branch runs")
    native = getattr(trace.executable, "native", None)
    if native is None:
        return Readiness(False, "it runs operator by operator, outside the runtime")
    return readiness(native.prepare, trace.inputs(leaves))


def readiness(
    native_prepare: Callable[..., tuple[dict[str, int] | None, str]], inputs: list[Any]
) -> Readiness:
    """What an executable's own `prepare` says of flat inputs."""
    stats, reason = native_prepare(inputs)
    if stats is None:
        return Readiness(False, reason)
    return Readiness(True, "", stats["arena_bytes"], stats["lower_bound_bytes"], stats["derived_bytes"])


def with_bytes(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with a CPU tensor of unset contents for each on the meta device."""

    def stand_in(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if value.is_meta else value

    if not any(isinstance(x, torch.Tensor) and x.is_meta for x in pytree.tree_leaves((args, kwargs))):
        return args, kwargs
    mapped: tuple[Any, Any] = pytree.tree_map_only(torch.Tensor, stand_in, (args, kwargs))
    return mapped
