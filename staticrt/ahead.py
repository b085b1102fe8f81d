"""`compiled.prepare(...)`: everything a call needs before it runs, done ahead of the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from staticrt.entry import Entry
from staticrt.frontend.keys import EagerOnly, call_key, eager_reason
from staticrt.frontend.structure import Flattener

if TYPE_CHECKING:
    from staticrt.archive.loaded import LoadedModel
    from staticrt.compiled import Engine


@dataclasses.dataclass(frozen=True)
class Readiness:
    """What `prepare` could do ahead of a call.

    Attributes:
        ready: the next such call runs a prepared program.
        reason: why not; "" where it does.
        arena_bytes: planned memory of one such call, its peak but for results; None if not ready.
        lower_bound_bytes: what any plan needs: the most bytes that are in use at once; None if not ready.
        packed_bytes: of weights held in another form for its kernels; None if not ready.
    """

    ready: bool
    reason: str = ""
    arena_bytes: int | None = None
    lower_bound_bytes: int | None = None
    packed_bytes: int | None = None

    def __bool__(self) -> bool:
        return self.ready

    def __str__(self) -> str:
        if not self.ready:
            return f"not ready: {self.reason}"
        return (
            f"ready: arena {self.arena_bytes} bytes (lower bound {self.lower_bound_bytes}), "
            f"packed weights {self.packed_bytes} bytes"
        )


def prepare(engine: Engine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Readiness:
    """Capture for these arguments and plan for their sizes, without running the model on them."""
    args, kwargs = with_bytes(args, kwargs)
    flattener = Flattener()
    spec = flattener.flatten((args, kwargs))
    leaves = flattener.leaves
    needs_grad = torch.is_grad_enabled() and (
        engine._wants_gradients() or any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)
    )
    # What needs gradients is captured by its first call; this prepares for calls that record none.
    with torch.set_grad_enabled(torch.is_grad_enabled() and not needs_grad), engine._lock:
        reason = eager_reason()  # under the lock: another thread's capture is over
        if reason is not None:
            return Readiness(False, reason)
        try:
            call = call_key(leaves, spec)
            entry = engine._find(call, leaves)
        except EagerOnly as error:
            return Readiness(False, str(error))
        except TypeError:
            return Readiness(False, "an argument is neither a tensor nor hashable")
        if entry is None and call.key not in engine._routes:
            entry = engine._capture(call, leaves, args, kwargs)
        if entry is None:
            return Readiness(False, f"not captured whole: {engine._failures[call.key].reason}")
    return _plan(entry, leaves)


def _plan(entry: Entry, leaves: Sequence[Any]) -> Readiness:
    captured = entry.captured
    if captured.decided:
        return Readiness(False, "data decides which branch runs")
    native = getattr(entry.executable, "native", None)
    if native is None:
        return Readiness(False, "it runs operator by operator, outside the runtime")
    return readiness(native.prepare, [*captured.values, *(leaves[index] for index in captured.user_leaves)])


def readiness(
    native_prepare: Callable[..., tuple[dict[str, int] | None, str]], inputs: list[Any]
) -> Readiness:
    """What an executable's own `prepare` says of flat inputs."""
    stats, reason = native_prepare(inputs)
    if stats is None:
        return Readiness(False, reason)
    return Readiness(True, "", stats["arena_bytes"], stats["lower_bound_bytes"], stats["derived_bytes"])


def prepare_loaded(model: LoadedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Readiness:
    """The same for a model from an archive, whose captures are all there are."""
    args, kwargs = with_bytes(args, kwargs)
    reasons = []
    for number, capture in enumerate(model._captures):
        call = model._fit(capture, args, kwargs)
        if isinstance(call, str):
            reasons.append(f"capture {number}: {call}")
        elif capture.native.decided:
            reasons.append(f"capture {number}: data decides which branch runs")
        else:
            return readiness(capture.native.prepare, call[1])
    return Readiness(False, f"the call fits no capture of {model.name}: " + "; ".join(reasons))


def with_bytes(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with a CPU tensor of unset contents for each on the meta device."""

    def stand_in(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if value.is_meta else value

    if not any(isinstance(x, torch.Tensor) and x.is_meta for x in pytree.tree_leaves((args, kwargs))):
        return args, kwargs
    mapped: tuple[Any, Any] = pytree.tree_map_only(torch.Tensor, stand_in, (args, kwargs))
    return mapped
