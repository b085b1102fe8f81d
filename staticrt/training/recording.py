"""Effects of a recorded training step on gradients and optimisers, besides its operators.

A step is recorded while autograd runs on fake results: `backward()` leaves fake tensors in `.grad` of real
parameters. A `Recording` remembers the gradients from before, reports the effect on each, and restores them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _disable_current_modes

from staticrt import torch_private
from staticrt.frontend.guards.code_objects import with_inner
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.tracer import BACKWARD
from staticrt.training.checkpoint_state import look_again
from staticrt.training.held_optimizers import HeldOptimizer, Read, StandIn
from staticrt.training.scalers import HeldScaler, is_scaler

_thread = threading.local()

CAPTURABLE_ON_THE_CPU = "capturable=True on the CPU"


def current() -> Recording | None:
    """The recording that this thread is making."""
    return getattr(_thread, "recording", None)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor with a `.grad`.

    Args:
        tensor: the real parameter, or the fake of the caller's argument number `argument` (None after the run).
        argument: index among the flat arguments, or -1.
        grad: its gradient before the step.
    """

    tensor: Any
    argument: int
    grad: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class GradEffect:
    """The effect of a step on one leaf's `.grad`.

    Args:
        effect: "keep" (the object stays; it may be written in place), "none" or "new" (an output of the graph).
        had_grad: whether there was a gradient before; None if the step does not depend on it.
    """

    leaf: Leaf
    effect: Literal["keep", "none", "new"]
    had_grad: bool | None


class Recording:
    """One attempt to record a step. Call `begin`, run the step, `end`; then call `restore` in any case.

    Args:
        snapshot: Python state that the step reads; optimisers of torch that it steps are added.
        leaves: parameters known before: those of modules and optimisers that the step's function reaches.
        twins: optimisers that it reaches, with what records their updates; ours record their own.
        scalers: gradient scalers that it reaches.

    Attributes:
        optimizers: what recorded updates.
        reads: hyperparameters that the step itself read.
        skip: a tensor; where it is not 0, the update that is being recorded is skipped.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        leaves: Iterable[torch.Tensor],
        twins: Iterable[tuple[Any, Any]] = (),
        scalers: Iterable[Any] = (),
    ) -> None:
        self._snapshot = snapshot
        self._leaves: dict[int, Leaf] = {}
        self._reset: set[int] = set()
        self._handle: Any = None
        self._owner = threading.get_ident()
        self._tracer: Any = None
        self.optimizers: list[Any] = []
        self._known = list(leaves)
        self._twins = list(twins)
        self._held: list[HeldOptimizer] = []
        self._stand_ins: list[StandIn] = []
        self._scalers = list(scalers)
        self._held_scalers: list[HeldScaler] = []
        self.skip: torch.Tensor | None = None
        self.reads: list[Read] = []

    def begin(self, arguments: list[Any], tracer: Any) -> None:
        """Start; `arguments` are the flat fake arguments, `tracer` is what records."""
        _thread.recording = self
        self._tracer = tracer
        self.optimizers = []
        tracer.inputs.on_lift = self.add_leaf
        tracer.marks = self._marks
        for tensor in self._known:
            self.add_leaf(tensor)
        for index, value in enumerate(arguments):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                self._leaves[id(value)] = Leaf(value, index, None)
        self._handle = torch_optimizer.register_optimizer_step_pre_hook(self._before_step)
        for optimizer, twin in self._twins:
            self._held.append(HeldOptimizer(twin))
            if optimizer is not twin:
                step = functools.partial(twin.record_step, self)
                self._stand_ins.append(StandIn(optimizer, twin, step, lambda: current() is self))
        for scaler in self._scalers:
            self._held_scalers.append(HeldScaler(scaler, self._records, self._update))

    def _records(self, optimizer: Any) -> bool:
        """Whether this thread records updates of an optimiser by a twin."""
        return current() is self and any(known is optimizer for known, _twin in self._twins)

    def _update(
        self, skip: torch.Tensor, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.skip = skip
        try:
            return optimizer.step(*args, **kwargs)
        finally:
            self.skip = None

    def _marks(self) -> dict[str, Any]:
        if torch_private.running_node() == -1:
            return {}
        look_again(self._tracer)
        return {BACKWARD: "is_backward"}

    def add_leaf(self, tensor: torch.Tensor) -> None:
        """Remember the gradient that a leaf has before the step; a frozen leaf may still have one."""
        if not tensor.is_leaf or id(tensor) in self._leaves:
            return
        if tensor.requires_grad or tensor.grad is not None:
            self._leaves[id(tensor)] = Leaf(tensor, -1, tensor.grad)

    def reset(self, params: list[torch.Tensor]) -> None:
        """`zero_grad`: the earlier gradients are not read from here on."""
        for p in params:
            self.add_leaf(p)
            leaf = self._leaves.get(id(p))
            if leaf is not None and p.grad is leaf.grad:
                self._reset.add(id(p))
            p.grad = None

    def use_optimizer(self, optimizer: Any) -> None:
        """Note that an optimiser of `staticrt.training.optim` updates parameters in the step."""
        if not any(held.optimizer is optimizer for held in self._held):
            self._held.append(HeldOptimizer(optimizer))
        with self.updating():
            reason = optimizer.can_record()
            if reason is not None:
                raise CannotTrace(reason)
            if not any(known is optimizer for known in self.optimizers):
                with _disable_current_modes():
                    optimizer.synchronise()
                self.optimizers.append(optimizer)

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Context manager: reads of optimisers do not count as the step's own."""
        with contextlib.ExitStack() as stack:
            for held in self._held:
                stack.enter_context(held.unwatched())
            yield

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Add the Python state of torch's own optimisers to the snapshot."""
        if threading.get_ident() != self._owner or type(optimizer).__module__.startswith("staticrt."):
            return
        if is_capturable_on_the_cpu(optimizer):
            raise CannotTrace(CAPTURABLE_ON_THE_CPU)
        if not any(known is optimizer for known, _twin in self._twins):
            self._snapshot.add(type(optimizer).__name__, optimizer)

    def end(self) -> tuple[list[GradEffect], tuple[torch.Tensor, ...]]:
        """The effect on every leaf's gradient, in the order of the leaves, and the gradients that are new."""
        self._tracer.parts.clear()  # no backward runs them
        if any(held.is_changed() for held in self._held):
            raise CannotTrace("the step changes hyperparameters of an optimiser, or which tensors it keeps")
        for scaler in self._held_scalers:
            scaler.check()
        self.reads = [read for held in self._held for read in held.reads()]
        touched = set(self._tracer.inputs.lifted)  # ids of the tensors that recorded operators read or wrote
        effects = []
        new = []
        for key, leaf in self._leaves.items():
            now = leaf.tensor.grad
            depends = key not in self._reset or (leaf.grad is not None and id(leaf.grad) in touched)
            effect: Literal["keep", "none", "new"] = (
                "keep" if now is leaf.grad else "none" if now is None else "new"
            )
            if effect == "keep" and leaf.grad is None and key in self._reset:
                effect = "none"
            if effect == "new":
                new.append(now)
            kept = leaf if leaf.argument < 0 else dataclasses.replace(leaf, tensor=None)
            effects.append(GradEffect(kept, effect, (leaf.grad is not None) if depends else None))
        return effects, tuple(new)

    def restore(self) -> None:
        """Restore all gradients, and let go of the run's tensors."""
        _thread.recording = None
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        while self._held_scalers:
            self._held_scalers.pop().restore()
        while self._stand_ins:
            self._stand_ins.pop().remove()
        for held in self._held:
            held.restore()
        self._held.clear()
        for leaf in self._leaves.values():
            if leaf.tensor.grad is not leaf.grad:
                leaf.tensor.grad = leaf.grad
        self._leaves.clear()
        self._reset.clear()
        torch.clear_autocast_cache()


def is_capturable_on_the_cpu(optimizer: Any) -> bool:
    """Whether an optimiser's eager steps raise an error that they do not raise under a compiler."""
    return any(
        group.get("capturable") and any(p.device.type == "cpu" for p in group["params"])
        for group in optimizer.param_groups
    )


def reachable(function: Any, snapshot: Snapshot) -> tuple[list[torch.nn.Module], list[Any], list[Any]]:
    """Modules, optimisers and gradient scalers that a function reaches: through closures, attributes and the globals it
    names."""
    found: dict[int, Any] = {id(value): value for value in snapshot.alive}
    for value in list(found.values()):
        if isinstance(value, types.FunctionType):
            for code in with_inner(value.__code__):
                for name in code.co_names:
                    item = value.__globals__.get(name)
                    if isinstance(item, (torch.nn.Module, torch.optim.Optimizer)) or is_scaler(item):
                        found[id(item)] = item
    modules = [value for value in found.values() if isinstance(value, torch.nn.Module)]
    optimizers = [value for value in found.values() if isinstance(value, torch.optim.Optimizer)]
    return modules, optimizers, [value for value in found.values() if is_scaler(value)]
