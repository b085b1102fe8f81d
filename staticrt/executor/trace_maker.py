"""Makes the traces of one function: requests a graph from the frontend and builds an executable from it."""

from __future__ import annotations

import dataclasses
import logging
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.frontend.arguments.names import argument_names
from staticrt.frontend.graph import KnownInputs, TracedGraph
from staticrt.frontend.guards.global_hooks import global_hooks
from staticrt.frontend.guards.remade_tensors import RemadeTensors
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.reasons import CannotTrace, NeedsBackward
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.lowering.lower import listing
from staticrt.options import Options
from staticrt.runtime import executable
from staticrt.runtime.cached_trace import CachedTrace
from staticrt.runtime.call import Call
from staticrt.shapes.size_env import NeedsShapeEnv

log = logging.getLogger(__name__)


class TraceMaker:
    """Requests traces of a function and makes them ready to run.

    Args:
        function, options, name, is_partial, known: as of `Executor`.
    """

    def __init__(
        self, function: Callable[..., Any], options: Options, name: str, is_partial: bool, known: KnownInputs
    ) -> None:
        self._function = function
        self._options = options
        self._name = name
        self._is_partial = is_partial
        self._known = known

    def parameters(self) -> list[torch.Tensor]:
        """The parameters of the function, if it is a module or a method of one."""
        owner = _module_of(self._function)
        return list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []

    def request(self, call: Call, seen: Sequence[CachedTrace]) -> TraceRequest:
        """The first request for a call; ints that differ from those in `seen` become symbols."""
        roots = [] if self._is_partial else [("", self._function), *global_hooks()]
        snapshot = Snapshot(roots, follows_code=not self._is_partial)
        snapshot.add_arguments(call.leaves)
        constants = [dict(trace.ints) for trace in seen if trace.ints]
        differing = (
            index
            for index, value in call.key.ints
            if any(ints.get(index, value) != value for ints in constants)
        )
        symbolic = self._known.symbolic_ints | frozenset(differing)
        return TraceRequest(
            self._function,
            call.spec,
            call.leaves,
            # An accelerator may compile subgraphs at any time, and ask torch about their sizes then.
            Sizing.first(
                self._options.dynamic is not False, shape_env=self._options.accelerators is not None
            ),
            names=argument_names(self._function, call.args, call.kwargs, len(call.leaves)),
            snapshot=snapshot,
            tensors=_tensors(self._function),
            layers=_layers(self._function),
            known=dataclasses.replace(self._known, symbolic_ints=symbolic),
            decide=not self._is_partial and self._options.graphs is False,
        )

    def make(self, call: Call, request: TraceRequest, gradients: bool = True) -> CachedTrace | TraceRequest:
        """The trace of a request, ready to run, or the request to make instead: the sizes did not serve.

        Args:
            call, request: what to trace.
            gradients: results may need gradients of the model's tensors. False: a joint trace has shown that none does;
                then the trace may not follow branches that data decides.

        Raises:
            Exception: whatever the model raised, and as `_build`.
        """
        from staticrt.frontend.tracing.trace import trace

        following: TraceRequest | None
        try:
            traced = trace(request if gradients else dataclasses.replace(request, decide=False))
        except (Exception, NeedsShapeEnv) as error:
            following = request.after(error)
            if following is None:
                raise
            return following
        needs = torch.is_grad_enabled() and any(value.requires_grad for value in traced.values)
        if gradients and needs:
            raise CannotTrace(NeedsBackward().reason) if self._is_partial else NeedsBackward()
        try:
            return self._build(call, request, traced)
        except NeedsShapeEnv as error:
            log.debug("traced again with torch's own sizes: %s", error)
            following = request.after(error)
            if following is None:
                raise
            return following

    def _build(self, call: Call, request: TraceRequest, traced: TracedGraph) -> CachedTrace:
        """A trace that is ready to run.

        Raises:
            CannotTrace: nothing could guard the trace.
            NeedsShapeEnv: a pass needs torch's own sizes.
            PassError, LoweringError: the graph cannot be compiled.
            WrittenDonation: the model writes an argument that is donated.
        """
        self.check(request, traced)
        built = self._executable(traced)
        state = request.snapshot.guard()
        remade = self._remade(traced, request.snapshot)
        return CachedTrace(traced, built, state, constant_ints(call, request), remade=remade)

    def _remade(self, traced: TracedGraph, snapshot: Snapshot) -> RemadeTensors | None:
        """None if the trace must run on the same tensors that it was made with, or reads none that a model replaces."""
        options = self._options
        if (
            traced.mutates
            or options.freeze
            or options.accelerators is not None
            or options.graphs is not False
        ):
            return None
        own = zip((spec for spec in traced.inputs if spec.kind != "user"), traced.values, strict=True)
        constants = [value for spec, value in own if spec.kind == "constant" and not spec.literal]
        return (constants or None) and (RemadeTensors(snapshot, constants) or None)

    def check(self, request: TraceRequest, traced: TracedGraph, what: str = "") -> None:
        """Check that a trace can be guarded, and log it: TORCH_LOGS="staticrt", and its graph with "+staticrt".

        Raises:
            CannotTrace: nothing could guard the trace.
        """
        if not request.snapshot.complete:
            raise CannotTrace("the model reaches more containers than can be guarded")
        graph = traced.module.graph
        log.info("traced %s%s: %d nodes", self._name, what, len(graph.nodes))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("graph of %s%s:\n%s", self._name, what, listing(graph))

    def _executable(self, traced: TracedGraph) -> executable.Executable:
        options = self._options
        if not self._is_partial:
            executable.donated_inputs(traced, options.donate)
        built = executable.build(
            traced,
            options.executor,
            freeze=options.freeze,
            accelerators=options.accelerators,
            # A graph that data may stop runs again as another one, on the same arguments.
            donate=() if self._is_partial or traced.decided else options.donate,
            **options.runtime(),
        )
        if options.graphs is False:
            return built
        from staticrt.graphs.compiled import CapturedExecutable

        return CapturedExecutable(built, traced, options.graphs, self._name)


def constant_ints(call: Call, request: TraceRequest) -> tuple[tuple[int, int], ...]:
    """The ints among a call's leaves that are constants of the trace."""
    return tuple((i, v) for i, v in call.key.ints if i not in request.known.symbolic_ints)


def _module_of(function: Callable[..., Any]) -> Any:
    """A function, or the object of a method."""
    return function.__self__ if isinstance(function, types.MethodType) else function


def _layers(function: Callable[..., Any]) -> dict[int, str]:
    root = _module_of(function)
    modules = root.named_modules() if isinstance(root, torch.nn.Module) else ()
    return {id(module): path for path, module in modules}


def _tensors(function: Callable[..., Any]) -> dict[int, tuple[str, str]]:
    root = _module_of(function)
    if not isinstance(root, torch.nn.Module):
        return {}
    found = {id(b): ("buffer", name) for name, b in root.named_buffers()}
    found.update({id(p): ("parameter", name) for name, p in root.named_parameters()})
    return found
