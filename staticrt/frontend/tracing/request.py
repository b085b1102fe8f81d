"""Requests for traces, and which request follows one that failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from staticrt.frontend.arguments.structure import Flattener, Structure
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.reasons import CannotTrace, NeedsConstants, is_interrupt
from staticrt.frontend.tracing.maybe_views import SizesDecideViews
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.shapes.size_env import NeedsShapeEnv


@dataclasses.dataclass(frozen=True)
class TraceRequest:
    """Record `function` for one set of arguments.

    Args:
        function: a module or function. It runs once over fake tensors; no real data is touched.
        spec: structure of the arguments `(args, kwargs)`. The model gets rebuilt containers, never the caller's.
        leaves: the flat arguments.
        sizing: how sizes are represented.
        names: readable names of the flat arguments, for messages.
        snapshot: state the model may change; what it reads from globals is added. It is restored after each trace.
        tensors: id of a model's tensor -> ("parameter" or "buffer", qualified name).
        layers: id of a model's module -> its path, "layers.0.norm".
        known: what is known of the leaves.
        autograd: record what autograd computes too: the function calls `backward()` or `autograd.grad` itself.
        derive: with `autograd`: called, while the tracer still records, with the tracer, the flat fake arguments and the
            flat outputs of the function; what it returns are further outputs of the graph.
        decide: follow branches that data decides by these arguments' values, with checks in the graph.
    """

    function: Callable[..., Any]
    spec: Structure
    leaves: Sequence[Any]
    sizing: Sizing = Sizing.OURS
    names: Sequence[str] = ()
    snapshot: Snapshot = dataclasses.field(default_factory=Snapshot)
    tensors: Mapping[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    layers: dict[int, str] = dataclasses.field(default_factory=dict)
    known: KnownInputs = dataclasses.field(default_factory=KnownInputs)
    autograd: bool = False
    derive: Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]] | None = None
    decide: bool = False

    @staticmethod
    def of(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **more: Any
    ) -> TraceRequest:
        """A request from arguments as in a call."""
        flattener = Flattener()
        spec = flattener.flatten((args, kwargs))
        return TraceRequest(function, spec, flattener.leaves, **more)

    def after(self, error: BaseException) -> TraceRequest | None:
        """The request to make once this one raised `error`; None where another way to represent sizes changes nothing.

        `error` may also come from passes and lowering: only `NeedsShapeEnv` is worth another trace then.
        """
        if isinstance(error, NeedsShapeEnv) and not self.sizing.is_ours:
            return None
        if isinstance(error, SizesDecideViews):
            return dataclasses.replace(self, sizing=Sizing.SHAPE_ENV_CONSTANT)
        if isinstance(error, NeedsConstants) and not self.is_constant:
            return self.constant()
        if isinstance(error, CannotTrace) or is_interrupt(error):
            return None
        following = self._next_sizing()
        if following is None:
            return None if self.is_constant else self.constant()
        return dataclasses.replace(self, sizing=following)

    @property
    def is_constant(self) -> bool:
        """Whether no number of the caller is symbolic."""
        return self.sizing.is_constant and not self.known.symbolic_ints

    @property
    def is_step(self) -> bool:
        """Whether the function is a training step, which reads and changes gradients itself."""
        return self.autograd and self.derive is None

    def constant(self) -> TraceRequest:
        """The request for the caller's own sizes and numbers alone."""
        known = dataclasses.replace(self.known, symbolic_ints=frozenset())
        sizing = Sizing.OURS_CONSTANT if self.sizing.is_ours else Sizing.SHAPE_ENV_CONSTANT
        return dataclasses.replace(self, sizing=sizing, known=known)

    def _next_sizing(self) -> Sizing | None:
        match self.sizing:
            case Sizing.OURS:
                return Sizing.SHAPE_ENV
            case Sizing.SHAPE_ENV if _has_small_sizes(self.leaves):
                return Sizing.SHAPE_ENV_ZERO_ONE
            case Sizing.SHAPE_ENV_CONSTANT:
                return None
        return Sizing.SHAPE_ENV_CONSTANT


def _has_small_sizes(leaves: Sequence[Any]) -> bool:
    return any(
        isinstance(leaf, torch.Tensor) and any(size in (0, 1) for size in leaf.shape) for leaf in leaves
    )
