"""Executable plans of one functional ATen graph, in a bounded cache.

A plan serves one kind of call: for a backward, one set of defined incoming gradients. Sizes, strides and dtypes are not
part of the key, since the C++ executable of each plan keeps prepared programs by signature.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from staticrt import locks
from staticrt.errors import LoweringError
from staticrt.frontend.guards.process_state import without_autocast
from staticrt.frontend.quick_graph import copied
from staticrt.frontend.reasons import raise_interrupt
from staticrt.native import _C
from staticrt.options import Options
from staticrt.passes.pipeline import run_pipeline
from staticrt.runtime.executable import LoweredGraph
from staticrt.torch_private import hidden_from_dynamo, without_analysis
from staticrt.training.layouts import settle_layouts
from staticrt.training.opaque import Opaque
from staticrt.training.saved import SavedAlias, saved_aliases
from staticrt.training.undefined import without_gradients

if TYPE_CHECKING:
    from staticrt.graphs.compiled import CapturedRuns
    from staticrt.graphs.context import GraphContext

log = logging.getLogger(__name__)


class Plan:
    """A graph that can run on flat inputs.

    Args:
        graph: functional ATen with fake-tensor `meta["val"]`; it stays as it is.
        options: checked options.
        num_results: outputs from this index on are saved for a backward; None if none is.
        role: "forward", "backward" or "inference".
        lent: inputs whose bytes a run may use where nothing else holds any of them.

    Attributes:
        captured: captures and replays runs, with the option `graphs`.
        fallback: why the graph runs operator by operator, or "".
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        options: Options,
        num_results: int | None = None,
        role: str = "inference",
        lent: Sequence[int] = (),
    ) -> None:
        self.captured: CapturedRuns | None = None
        self.fallback = ""
        self.calls = 0
        self.lowered: LoweredGraph | None = None
        self._aliases: list[SavedAlias] = []
        self.num_outputs = len(graph.graph.output_node().args[0])  # type: ignore[arg-type]
        self.num_nodes = sum(node.op == "call_function" for node in graph.graph.nodes)
        # Not custom operators, whose aliases AOTAutograd would check; the check rejects scalars in place of tensors.
        self._is_torchs_only = all(
            node.target.namespace in ("aten", "prims")
            for node in graph.graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
        )
        if options.executor == "reference":
            self.fallback = "executor='reference'"
            self._graph = _settled(graph)
            return
        self._opaque = Opaque(graph)
        self._graph = rewritten = copied(graph)
        try:
            # A saved activation is an output and lives as long as its autograd graph.
            runtime = {**options.runtime(), "manage_outputs": False}
            if options.graphs is False:
                runtime.update(
                    lent=list(lent), early_outputs=role == "forward", keeps_arena=role == "inference"
                )
            if runtime.pop("passes"):
                run_pipeline(rewritten)
            settle_layouts(rewritten)
            if num_results is not None:
                self._aliases = saved_aliases(rewritten, num_results)
            self.lowered = LoweredGraph(rewritten, **runtime)
            if options.graphs is not False:
                self.captured = _captured(self.lowered, options.graphs, role)
        except Exception as error:
            raise_interrupt(error)
            if options.executor == "static":
                raise
            kind = "" if isinstance(error, LoweringError) else f"{type(error).__name__}: "
            self.fallback = kind + str(error).split("\n")[0]
            self.lowered, self.captured, self._aliases = None, None, []
            self._graph = _settled(graph)  # a failed pass may have left the other half rewritten
            log.info("a graph of %d nodes runs operator by operator: %s", self.num_nodes, self.fallback)

    @property
    def native(self) -> _C.Executable | None:
        """The C++ executable; None where the graph runs operator by operator."""
        return self.lowered.native if self.lowered is not None else None

    @hidden_from_dynamo
    def run(self, inputs: list[Any]) -> list[Any]:
        """Outputs in the order of the graph's; `inputs` is emptied."""
        self.calls += 1
        if self.lowered is None:
            return self._run_operators(inputs)
        passed: list[tuple[int, Any]] = []
        if self._opaque.inputs:
            read, passed = self._opaque.take_out(inputs)
            if read:
                return self._run_operators(inputs)
        if torch._C._len_torch_dispatch_stack() and self._is_torchs_only:
            with without_analysis():
                outputs = list(self.lowered.run(inputs))
        elif self.captured is not None:
            outputs = list(self.captured.run(list(inputs) if self._aliases else inputs))
        else:
            outputs = list(self.lowered.run(inputs))
        for alias in self._aliases:
            outputs[alias.output] = alias.renewed(inputs, outputs)
        for at, value in passed:
            outputs[at] = value
        inputs.clear()
        return outputs

    def _run_operators(self, inputs: list[Any]) -> list[Any]:
        with torch.no_grad(), without_autocast():
            interpreter = fx.Interpreter(self._graph)
            outputs = interpreter.boxed_run(inputs)
        return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _settled(graph: fx.GraphModule) -> fx.GraphModule:
    own = copied(graph)
    settle_layouts(own)
    return own


def _captured(lowered: LoweredGraph, graphs: bool | GraphContext, role: str) -> CapturedRuns:
    from staticrt.graphs.compiled import CapturedRuns

    def run(inputs: list[Any]) -> list[Any]:
        outputs = list(lowered.run(inputs))
        inputs.clear()
        return outputs

    written = lowered.native.written_inputs
    return CapturedRuns(run, graphs, role, mutated_inputs=written, static_inputs=(), mode=role)


@dataclasses.dataclass
class Lookups:
    """Counters of a cache: hits, misses (compilations) and evictions."""

    hits: int = 0
    misses: int = 0
    evicted: int = 0


class PlanCache:
    """An LRU cache of plans. Thread-safe: one thread compiles a key, others wait for it.

    Args:
        make: compiles the plan for a key; called outside the lock.
        capacity: plans kept, at least 1.
    """

    def __init__(self, make: Callable[[Any], Plan], capacity: int) -> None:
        self._make = make
        self._capacity = capacity
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._tickets: dict[Hashable, Any] = {}
        self._lock = locks.reentrant()
        self.counters = Lookups()

    def get(self, key: Hashable) -> Plan:
        """The plan for `key`; compiles it if the cache has none."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self.counters.hits += 1
                self._plans.move_to_end(key)
                return plan
            ticket = self._tickets.setdefault(key, locks.reentrant())
        with ticket:
            with self._lock:
                plan = self._plans.get(key)
                if plan is not None:
                    self.counters.hits += 1
                    return plan
            plan = self._make(key)
            with self._lock:
                self.counters.misses += 1
                self._plans[key] = plan
                self._tickets.pop(key, None)
                if len(self._plans) > self._capacity:
                    self._plans.popitem(last=False)
                    self.counters.evicted += 1
        return plan

    def items(self) -> list[tuple[Hashable, Plan]]:
        """Keys and plans, the least recently used first."""
        with self._lock:
            return list(self._plans.items())


class CompiledGraph:
    """One graph of a region with its plans.

    Args:
        graph: functional ATen, from AOTAutograd.
        options: checked options.
        role: "forward", "backward" or "inference".
        optional: positions of the inputs that may be None: incoming gradients.
        num_results: for a forward, the index from which on outputs are saved for the backward.
        lent: as of `Plan`.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        options: Options,
        role: str,
        optional: Sequence[int] = (),
        num_results: int | None = None,
        lent: Sequence[int] = (),
    ) -> None:
        self.role = role
        self._lent = tuple(lent)
        self._num_results = num_results
        self._graph = graph
        self._options = options
        self.incoming = tuple(optional)
        self._num_outputs = len(graph.graph.output_node().args[0])  # type: ignore[arg-type]
        self.plans = PlanCache(self._plan, options.max_plans)
        self.operators = Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")

    def run(self, inputs: list[Any], unneeded: Sequence[int] = ()) -> list[Any]:
        """Outputs for flat inputs; empties `inputs`, so that tensors without other references are freed.

        Args:
            inputs: tensors and numbers; None for an incoming gradient that is undefined.
            unneeded: for a backward, inputs of the region whose gradients are not requested; they are None.
        """
        undefined = tuple(i for i in self.incoming if inputs[i] is None)
        if undefined and len(undefined) == len(self.incoming):
            inputs.clear()
            return [None] * self._num_outputs
        return self.plans.get((*undefined, *(-1 - i for i in unneeded))).run(inputs)

    def _plan(self, key: tuple[int, ...]) -> Plan:
        """The plan for calls without the inputs `i >= 0` and the outputs `-1 - i` of the key."""
        graph = self._graph
        if key:
            graph = copied(graph)
            unneeded = {-1 - i for i in key if i < 0}
            output = graph.graph.output_node()
            gradients: Any = output.args[0]
            output.args = (tuple(None if i in unneeded else item for i, item in enumerate(gradients)),)
            without_gradients(graph, [i for i in key if i >= 0])
        log.debug("%s graph, undefined or unneeded gradients %s:\n%s", self.role, key, graph.graph)
        return Plan(graph, self._options, self._num_results, self.role, self._lent)

    def debug_state(self) -> dict[str, Any]:
        """Plans by key, counters, and why plans run operator by operator."""
        return {
            "role": self.role,
            "plans": {
                key: {
                    "nodes": plan.num_nodes,
                    "calls": plan.calls,
                    "fallback": plan.fallback,
                    "prepared": plan.native.cache_counters if plan.native is not None else {},
                }
                for key, plan in self.plans.items()
            },
            **dataclasses.asdict(self.plans.counters),
        }
