"""Door A: AOTAutograd splits a region into forward and backward graphs; both run as Programs.

AOTAutograd brings functionalization, aliases, write-backs and tangents; what it gets wrong is put right here: the cut
(`partition.py`), undefined gradients (`undefined.py`), second derivatives and kept graphs (`replay.py`).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from staticrt import _compat
from staticrt.errors import CaptureError, LoweringError, OptionError
from staticrt.options import Options
from staticrt.report.explain import CaptureReport, EagerReport
from staticrt.training.door_b import NotDoorB, Pair, open_door_b
from staticrt.training.islands import Eager, example_values, needs_splitting, run_compiled, split
from staticrt.training.partition import safe_partition
from staticrt.training.plans import CompiledGraph
from staticrt.training.replay import Replay
from staticrt.training.saved import lost_aliases, shared_results
from staticrt.training.statistics import unread_inputs

if TYPE_CHECKING:
    from staticrt.capture.compiled import CapturedRuns

log = logging.getLogger(__name__)
_numbers = itertools.count()
_live: list[weakref.ref[Region]] = []


def regions() -> list[Region]:
    """Regions that are still in use, in the order in which they were compiled."""
    _live[:] = [ref for ref in _live if ref() is not None]
    return [region for region in (ref() for ref in _live) if region is not None]


class _Unfaithful(Exception):
    """Upstream compiled something else than the region."""


class Region:
    """A differentiable region, compiled.

    Args:
        gm: torch calls on flat inputs, as Dynamo captures them; kept for second derivatives.
        inputs: example inputs, one per placeholder.
        options: checked options.
        name: for messages and reports.
        is_island: it is a part of a region; what fails in it is not cut further.

    Attributes:
        eager: the nodes that run eagerly, and why.
        calls: how often it ran.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        options: Options,
        name: str = "",
        is_island: bool = False,
    ) -> None:
        self.name = name or f"region {next(_numbers)}"
        self._is_island = is_island
        self._graphs: list[CompiledGraph] = []
        self.calls = 0
        self._options = options
        self._remembers = options.double_backward
        self._inputs = tuple(_describe(value) for value in inputs)
        self._num_results = 0
        self._eager: Callable[..., Any] = torch.compiler.disable(gm.forward)  # type: ignore[no-untyped-call]
        self._replay = Replay(self._eager, self.name, unread_inputs(gm))
        self._replay.graphs = options.graphs
        self._pair: Pair | None = None
        self.door = "A"
        self.not_door_b = ""
        self.eager: tuple[Eager, ...] = ()
        self._islands: list[Region] = []
        self._failed = ""
        self._shared: list[tuple[int, int]] = []
        self._subclassed: list[int] | None = None
        self._first: Callable[..., Any] | None = None  # answers the first call
        self._run = self._compile_islands(gm) if needs_splitting(gm) else self._compile_or_cut(gm, inputs)
        _live.append(weakref.ref(self))

    def _compile_or_cut(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a region; where upstream fails on a node, that node runs eagerly between islands, or all does."""
        try:
            return self._compile(gm, inputs)
        except (OptionError, LoweringError):
            raise  # what the options asked for
        except Exception as error:
            if _compat.restarts_dynamo(error):
                raise
            kind = "" if isinstance(error, _Unfaithful) else f"{type(error).__name__}: "
            reason = f"it cannot be differentiated ahead of time: {kind}{_first_line(error)}"
            if self._options.fullgraph:
                raise CaptureError(f"cannot compile {self.name} for training: {reason}") from error
            failing = None if self._is_island else _failing_node(gm, error)
            log.info("%s: %s", self.name, reason)
        self._graphs.clear()
        self._pair = None
        if failing is not None:
            return self._compile_islands(gm, {failing: reason})
        self._failed = reason
        self._remembers = False
        return self._eager

    def _compile_islands(
        self, gm: fx.GraphModule, unsupported: Mapping[str, str] | None = None
    ) -> Callable[..., Any]:
        """Compile what can be, as regions of their own; the rest runs eagerly between them."""
        pieces = split(gm, self._options.min_island_nodes, unsupported)
        self.eager = pieces.eager
        self._remembers = False  # each island does, for itself
        for item in self.eager:
            log.info("%s: %s runs eagerly: %s", self.name, item.node, item.reason)
        islands = {
            name: Region(
                pieces.module.get_submodule(name),  # type: ignore[arg-type]
                example_values(pieces.module, name),
                self._options,
                f"{self.name}, {name}",
                is_island=True,
            )
            for name in pieces.islands
        }
        self._islands = list(islands.values())
        return torch.compiler.disable(run_compiled(pieces, islands))  # type: ignore[no-untyped-call, no-any-return]

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run, cls = _compat.aot_compile(
            gm,
            inputs,
            forward=self._compiler("forward"),
            backward=self._compiler("backward"),
            inference=self._compiler("inference"),
            partition=self._partition,
        )
        self._remembers = self._remembers and cls is not None
        if cls is not None and (lost := lost_aliases(self._shared, cls.metadata)):
            raise _Unfaithful(lost)
        if cls is not None:
            self._replay.attach(cls)
            if self._options.door != "a":
                through_b = self._through_door_b(cls.metadata, len(inputs))
                if through_b is not None and _compat.first_call_is_fake():
                    self._first = run
                return through_b or run
        return run

    def captured_runs(self) -> list[CapturedRuns]:
        """Programs that run captured (option `graphs`)."""
        islands = [run for island in self._islands for run in island.captured_runs()]
        plans = [plan for graph in self._graphs for _key, plan in graph.plans.items()]
        return islands + [plan.captured for plan in plans if plan.captured is not None]

    def _through_door_b(self, metadata: Any, num_inputs: int) -> Callable[..., Any] | None:
        """The region behind a node of our own, or None where that does not fit."""
        pair, self._pair = self._pair, None
        forward = next((graph for graph in self._graphs if graph.role == "forward"), None)
        try:
            if pair is None or forward is None:
                raise NotDoorB("it has no graph to differentiate")
            if self._options.graphs:
                raise NotDoorB("its programs run captured")
            native, backward = open_door_b(
                pair, forward.plans.get(()), metadata, num_inputs, self._options, self._replay, self.name
            )
        except Exception as error:
            if self._options.executor == "static" and isinstance(error, LoweringError):
                raise
            reason = (
                str(error) if isinstance(error, NotDoorB) else f"{type(error).__name__}: {_first_line(error)}"
            )
            if self._options.door == "b":
                raise OptionError(
                    f"{self.name} does not fit door='b': {reason}", fix="leave the option 'door' at 'auto'"
                ) from error
            self.not_door_b = reason
            return None
        self.door = "B"
        self._graphs.append(backward)
        self._remembers = False  # the node keeps the inputs
        return native.run

    def _partition(self, joint: fx.GraphModule, inputs: Any, **keywords: Any) -> tuple[Any, Any]:
        self._num_results = int(keywords["num_fwd_outputs"])
        self._shared = shared_results(joint, self._num_results)
        forward, backward = safe_partition(
            joint, inputs, budget=self._options.activation_memory_budget, **keywords
        )
        if self._options.door != "a":
            self._pair = Pair(forward, backward, keywords["num_fwd_outputs"])
        return forward, backward

    def _compiler(self, role: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if role == "forward":
                self._replay.random = any(_draws(node) for node in graph.graph.nodes)
            optional = [
                index
                for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
                if role == "backward" and _compat.is_tangent(node)
            ]
            compiled = CompiledGraph(
                graph, self._options, role, optional, self._num_results if role == "forward" else None
            )
            self._graphs.append(compiled)
            log.info("%s: %s graph of %d nodes", self.name, role, len(graph.graph.nodes))

            count = len(graph.graph.output_node().args[0])  # type: ignore[arg-type]

            def run(inputs: list[Any]) -> list[Any]:
                return compiled.run(inputs, self._replay.unneeded(count) if role == "backward" else ())

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        if self._subclassed is None:  # Dynamo guards types: they are those of the first call
            self._subclassed = [i for i, value in enumerate(inputs) if _is_plain_subclass(value)]
        if self._subclassed:  # Dynamo has taken their behaviour into the graph; AOTAutograd refuses them
            flat = list(inputs)
            for i in self._subclassed:
                flat[i] = flat[i].as_subclass(torch.Tensor)
            inputs = tuple(flat)
        if torch.is_inference_mode_enabled():  # enable_grad() within it changes nothing
            return self._eager(*inputs)
        if self._first is not None:
            run, self._first = self._first, None
            self.calls -= 1  # nothing is computed
            return run(*inputs)
        if not self._remembers:
            return self._run(*inputs)
        with self._replay.recording(inputs):
            return self._run(*inputs)

    @property
    def graphs(self) -> list[CompiledGraph]:
        """The compiled forward, backward and inference graphs so far: a backward is compiled when it first runs."""
        return self._graphs + [graph for island in self._islands for graph in island.graphs]

    def report(self) -> CaptureReport:
        """The region for `explain()`."""
        counts: Counter[str] = Counter()
        for graph in self.graphs:
            counts.update(graph.operators)
        return CaptureReport(
            route="training",
            inputs=self._inputs,
            nodes=sum(counts.values()),
            operators=tuple(counts.most_common()),
            guards=(),
            mutates=(),
            passes=(),
            kinds=tuple((graph.role, sum(graph.operators.values())) for graph in self.graphs),
            executor="eager" if self._failed else f"door {self.door}",
            calls=self.calls,
        )

    def eager_reports(self) -> list[EagerReport]:
        """What of the region runs eagerly, for `explain()`."""
        found = [EagerReport("region", self._failed, "", self.calls)] if self._failed else []
        found += [EagerReport(f"node {item.node}", item.reason, "", self.calls) for item in self.eager]
        return found + [report for island in self._islands for report in island.eager_reports()]

    def debug_state(self) -> dict[str, Any]:
        """Plans of each graph with their counters, and what runs eagerly."""
        return {
            "name": self.name,
            "door": self.door,
            "not door B": self.not_door_b,
            "calls": self.calls,
            "failed": self._failed,
            "eager": [dataclasses.asdict(item) for item in self.eager],
            "islands": [island.name for island in self._islands],
            "graphs": [graph.debug_state() for graph in self.graphs],
        }


def _is_plain_subclass(value: Any) -> bool:
    """Whether a value is of a class of tensors that differs by Python methods only."""
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return False
    return type(value) is not torch.Tensor and not is_traceable_wrapper_subclass(value)


def _describe(value: Any) -> str:
    """An example input in short: "float32[8, 4]"."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).split("\n") if line.strip()), "no message")


def _failing_node(gm: fx.GraphModule, error: BaseException) -> str | None:
    """The node that upstream was executing when it failed, if its message says so."""
    named = re.search(r"While executing %(\w+)", str(error))
    nodes = {node.name for node in gm.graph.nodes if node.op.startswith("call_")}
    return named[1] if named and named[1] in nodes else None


def _draws(node: fx.Node) -> bool:
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
    )
