"""Regions: AOTAutograd splits each into forward and backward graphs, and both run as Programs.

AOTAutograd handles functionalization, aliases, write-backs and tangents. This package corrects its partition
(`partition.py`), undefined gradients (`undefined.py`) and second derivatives (`double_backward.py`).
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

from staticrt import torch_private
from staticrt.errors import LoweringError, NumberError, OptionError, TraceError
from staticrt.frontend.dynamo.dynamo import known_inputs
from staticrt.frontend.dynamo.resets import release_at_reset
from staticrt.frontend.guards.operators import definitions_of, kernels_of
from staticrt.frontend.reasons import raise_interrupt
from staticrt.frontend.thread_state import keeping_thread_state
from staticrt.native import _C
from staticrt.ops import draws
from staticrt.options import Options
from staticrt.runtime.cached_trace import has_elements_apart
from staticrt.runtime.explain.explanation import EagerReport, TraceReport
from staticrt.training.cast_backward import CastBackward
from staticrt.training.copied import copied
from staticrt.training.decompositions import recurrent_networks
from staticrt.training.double_backward import Replay
from staticrt.training.grad_modes import inference_result, view_without_history
from staticrt.training.graph_split import Eager, example_values, needs_splitting, run_compiled, split, writes
from staticrt.training.native_node import NotNative, Pair, gate, make_native_node
from staticrt.training.overlaps import draws_by_memory, overlapping_writes, shares_written, views_of_several
from staticrt.training.partition import safe_partition
from staticrt.training.plans import CompiledGraph
from staticrt.training.saved import lost_aliases, merged_inputs, shared_results
from staticrt.training.statistics import unread_inputs
from staticrt.training.unread import unread_effects
from staticrt.training.views_in_place import viewed_in_place, written_later

if TYPE_CHECKING:
    from staticrt.graphs.compiled import CapturedRuns

log = logging.getLogger(__name__)
_numbers = itertools.count()
_live: list[weakref.ref[Region]] = []


def regions() -> list[Region]:
    """Regions that are still in use, in the order in which they were compiled."""
    _live[:] = [ref for ref in _live if ref() is not None]
    return [region for region in (ref() for ref in _live) if region is not None]


class _Unfaithful(Exception):
    """AOTAutograd compiled graphs that differ from the region."""


class Region:
    """A differentiable region, compiled.

    Args:
        gm: Dynamo's graph of torch calls on flat inputs; kept for second derivatives.
        inputs: example inputs, one per placeholder.
        options: checked options.
        name: for messages and reports.
        is_subregion: it is part of a split region; if it fails, it runs eagerly as a whole.

    Attributes:
        eager: the nodes that run eagerly, with reasons.
        calls: how often it ran.
        is_released: nothing compiled is left; it runs eagerly.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        inputs: Sequence[Any],
        options: Options,
        name: str = "",
        is_subregion: bool = False,
    ) -> None:
        self.name = name or f"region {next(_numbers)}"
        self._is_subregion = is_subregion
        self._graphs: list[CompiledGraph] = []
        self.calls = 0
        self.is_released = False
        self._options = options
        self._remembers = options.double_backward
        self._inputs = tuple(_describe(value) for value in inputs)
        self._ints = [i for i, value in enumerate(inputs) if isinstance(value, torch.SymInt)]
        self._num_results = 0
        self._writes = any(writes(node) for node in gm.graph.nodes)
        self._eager: Callable[..., Any] = torch.compiler.disable(gm.forward)  # type: ignore[no-untyped-call]
        self._replay = Replay(self._eager, self.name, unread_inputs(gm))
        self._replay.graphs = options.graphs
        if any("autograd_function_apply" in str(node.target) for node in gm.graph.nodes):
            self._replay.refuses = "Dynamo records a custom autograd Function for first derivatives only"
        self._pair: Pair | None = None
        self.node = "aot"
        self.not_native = ""
        self.eager: tuple[Eager, ...] = ()
        self._subregions: list[Region] = []
        self._failed = ""
        self._shared: list[tuple[int, int]] = []
        self._subclassed: list[int] | None = None
        self._written: frozenset[int] = frozenset()
        weights = known_inputs(gm, inputs).weights
        self._arguments = [
            i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor) and i not in weights
        ]
        self._first: Callable[..., Any] | None = None  # serves the first call
        self._kernels: _C.OperatorKernels | None = None  # of its operators when it was compiled
        self._definitions: list[tuple[dict[str, Any], dict[str, Any]]] = []  # in Python: now, and then
        self._replaced = ""  # why it runs eagerly for now
        eager: dict[str, str] = {}
        if not is_subregion:
            for find in (unread_effects, overlapping_writes, draws_by_memory, views_of_several):
                eager.update(find(gm))
        if eager or needs_splitting(gm):
            self._run = self._compile_split(gm, eager)
        else:
            self._run = self._compile_or_cut(gm, inputs)
        _live.append(weakref.ref(self))
        if not is_subregion:
            release_at_reset(self)

    def _compile_or_cut(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a region. If AOTAutograd fails on a known node, only that node runs eagerly; else the region does."""
        try:
            return keeping_thread_state(lambda: self._compile(gm, inputs))
        except (OptionError, LoweringError):
            raise  # the options ask for this error
        except Exception as error:
            raise_interrupt(error)
            if torch_private.restarts_dynamo(error):
                raise
            kind = "" if isinstance(error, _Unfaithful) else f"{type(error).__name__}: "
            reason = f"it cannot be differentiated ahead of time: {kind}{_first_line(error)}"
            if self._options.fullgraph:
                raise TraceError(
                    f"cannot compile {self.name} for training: {reason}", fix="leave out fullgraph=True"
                ) from error
            failing = None if self._is_subregion else _failing_node(gm, error)
            log.info("%s: %s", self.name, reason)
        self._graphs.clear()
        self._pair = None
        if failing is not None:
            return self._compile_split(gm, {failing: reason})
        self._failed = reason
        self._remembers = False
        return self._eager

    def _compile_split(
        self, gm: fx.GraphModule, unsupported: Mapping[str, str] | None = None
    ) -> Callable[..., Any]:
        """Compile the supported subregions; the other nodes run eagerly between them."""
        pieces = split(gm, self._options.min_region_nodes, unsupported)
        self.eager = pieces.eager
        self._remembers = False  # each subregion keeps its own inputs
        for item in self.eager:
            log.info("%s: %s runs eagerly: %s", self.name, item.node, item.reason)
        subregions = {
            name: Region(
                pieces.module.get_submodule(name),  # type: ignore[arg-type]
                example_values(pieces.module, name),
                self._options,
                f"{self.name}, {name}",
                is_subregion=True,
            )
            for name in pieces.subregions
        }
        self._subregions = list(subregions.values())
        return torch.compiler.disable(run_compiled(pieces, subregions))  # type: ignore[no-untyped-call, no-any-return]

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if unfaithful := view_without_history(gm) or inference_result(gm) or written_later(gm):
            raise _Unfaithful(unfaithful)
        operators = _C.OperatorWatch()
        try:
            operators.start()
            with recurrent_networks():
                run, cls = torch_private.aot_compile(
                    gm,
                    inputs,
                    forward=self._compiler("forward"),
                    backward=self._compiler("backward"),
                    inference=self._compiler("inference"),
                    partition=self._partition,
                )
        finally:
            operators.stop()
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        self._kernels = kernels_of(operators.names(), [each.device for each in tensors])
        self._definitions = [(each, dict(each)) for each in definitions_of(operators.names())]
        self._remembers = self._remembers and cls is not None
        if cls is not None and (
            lost := lost_aliases(self._shared, cls.metadata)
            or viewed_in_place(gm, cls.metadata)
            or merged_inputs(inputs, cls.metadata)
        ):
            raise _Unfaithful(lost)
        if cls is not None:
            written = torch_private.written_inputs(cls.metadata)
            self._written = frozenset(i for i, is_written in enumerate(written) if is_written)
            self._replay.attach(cls)
            if self._options.backward_node != "aot":
                through_native = self._through_native_node(cls.metadata, len(inputs))
                if through_native is not None and torch_private.first_call_is_fake():
                    self._first = run
                return through_native or run
        return run

    def release(self) -> None:
        """Drop what was compiled; backwards that are pending keep what they need. Calls run eagerly from now on."""
        self.is_released = True
        self._run, self._first, self._remembers = self._eager, None, False
        self._graphs, self._subregions, self._subclassed = [], [], None

    def captured_runs(self) -> list[CapturedRuns]:
        """Programs that run captured (option `graphs`)."""
        subregions = [run for subregion in self._subregions for run in subregion.captured_runs()]
        plans = [plan for graph in self._graphs for _key, plan in graph.plans.items()]
        return subregions + [plan.captured for plan in plans if plan.captured is not None]

    def _through_native_node(self, metadata: Any, num_inputs: int) -> Callable[..., Any] | None:
        """The region behind the native autograd node, or None where that does not support it."""
        pair, self._pair = self._pair, None
        forward = next((graph for graph in self._graphs if graph.role == "forward"), None)
        try:
            if pair is None or forward is None:
                raise NotNative("it has no graph to differentiate")
            if self._options.graphs:
                raise NotNative("its programs run captured")
            gate(metadata)
            native, (backward,) = make_native_node(
                pair,
                forward.plans.get(()),
                [info.requires_grad for info in metadata.output_info],
                num_inputs,
                self._options,
                self._replay,
                self.name,
            )
        except Exception as error:
            raise_interrupt(error)
            if self._options.executor == "static" and isinstance(error, LoweringError):
                raise
            reason = (
                str(error)
                if isinstance(error, NotNative)
                else f"{type(error).__name__}: {_first_line(error)}"
            )
            if self._options.backward_node == "native":
                raise OptionError(
                    f"{self.name} does not fit backward_node='native': {reason}",
                    fix="leave the option 'backward_node' at 'auto'",
                ) from error
            self.not_native = reason
            return None
        self.node = "native"
        self._graphs.append(backward)
        self._remembers = False  # the node keeps the inputs
        return native.run

    def _partition(self, joint: fx.GraphModule, inputs: Any, **keywords: Any) -> tuple[Any, Any]:
        self._num_results = int(keywords["num_fwd_outputs"])
        self._shared = shared_results(joint, self._num_results)
        forward, backward = safe_partition(
            joint, inputs, budget=self._options.activation_memory_budget, **keywords
        )
        if self._options.backward_node != "aot":
            # AOTAutograd may change what it compiles.
            self._pair = Pair(copied(forward), copied(backward), keywords["num_fwd_outputs"])
            self._replay.is_cast = CastBackward(self._pair.backward, self._replay)
        return forward, backward

    def _compiler(self, role: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if role == "forward":
                self._replay.random = any(draws(node) for node in graph.graph.nodes)
            optional = [
                index
                for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
                if role == "backward" and torch_private.is_tangent(node)
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
        if self._kernels is not None and not self._operators_hold(self._kernels):
            self._replaced = "a library replaced the kernel or the definition of an operator"
            return self._eager(*inputs)
        self._replaced = ""
        if self._subclassed is None:  # Dynamo guards types, so those of the first call hold for all
            self._subclassed = [i for i, value in enumerate(inputs) if _is_plain_subclass(value)]
        if self._subclassed:  # Dynamo traced their methods; AOTAutograd refuses the class
            flat = list(inputs)
            for i in self._subclassed:
                flat[i] = flat[i].as_subclass(torch.Tensor)
            inputs = tuple(flat)
        # enable_grad() has no effect in inference mode, the nodes compute no forward-mode tangents, and programs take
        # 64-bit integers.
        if torch.is_inference_mode_enabled() or torch.autograd.forward_ad._current_level >= 0:
            return self._eager(*inputs)
        if any(_is_large(inputs[i]) for i in self._ints):
            return self._eager(*inputs)
        if self._first is not None:
            run, self._first = self._first, None
            self.calls -= 1  # this call only traces
            return run(*inputs)
        if self._writes and any(map(_overlaps_itself, inputs)):
            return self._eager(*inputs)  # AOTAutograd would write a copy back, element by element
        if self._written and shares_written(inputs, self._written, self._arguments):
            return self._eager(*inputs)
        try:
            if not self._remembers:
                return self._run(*inputs)
            with self._replay.recording(inputs):
                return self._run(*inputs)
        except Exception as error:
            # Eager takes larger numbers, and writes what comes before an error.
            beyond = isinstance(error, NumberError) and not self._has_effects
            if not self._failed_before_writes() and not beyond:
                raise
            return self._eager(*inputs)

    def _operators_hold(self, kernels: _C.OperatorKernels) -> bool:
        return kernels.hold() and all(live == saved for live, saved in self._definitions)

    def _failed_before_writes(self) -> bool:
        """Whether the region writes inputs, and this thread's last run that raised had not written any yet."""
        plans = [
            plan for graph in self._graphs if graph.role != "backward" for _key, plan in graph.plans.items()
        ]
        natives = [plan.native for plan in plans if plan.native is not None]
        # What autograd sees written, AOTAutograd writes after its forward graph has run.
        writes = any(self._replay.written) or any(native.written_inputs for native in natives)
        return writes and any(native.failed_before_effects() for native in natives)

    @property
    def _has_effects(self) -> bool:
        """Whether a run that raised may have written or drawn something."""
        return bool(self._subregions) or self._replay.random or any(self._replay.written)

    @property
    def graphs(self) -> list[CompiledGraph]:
        """The graphs compiled so far; a backward is compiled when it first runs."""
        return self._graphs + [graph for subregion in self._subregions for graph in subregion.graphs]

    def report(self) -> TraceReport:
        """The region for `explain()`."""
        counts: Counter[str] = Counter()
        for graph in self.graphs:
            counts.update(graph.operators)
        return TraceReport(
            route="training",
            inputs=self._inputs,
            nodes=sum(counts.values()),
            operators=tuple(counts.most_common()),
            guards=(),
            mutates=(),
            passes=(),
            kinds=tuple((graph.role, sum(graph.operators.values())) for graph in self.graphs),
            executor="eager" if self._failed or self._replaced else f"{self.node} node",
            calls=self.calls,
        )

    def eager_reports(self) -> list[EagerReport]:
        """The eager parts of the region, for `explain()`."""
        reason = self._failed or self._replaced
        found = [EagerReport("region", reason, "", self.calls)] if reason else []
        found += [EagerReport(f"node {item.node}", item.reason, "", self.calls) for item in self.eager]
        return found + [report for subregion in self._subregions for report in subregion.eager_reports()]

    def debug_state(self) -> dict[str, Any]:
        """Plans and counters of each graph, and the nodes that run eagerly."""
        return {
            "name": self.name,
            "node": self.node,
            "why not native": self.not_native,
            "calls": self.calls,
            "failed": self._failed,
            "eager": [dataclasses.asdict(item) for item in self.eager],
            "subregions": [subregion.name for subregion in self._subregions],
            "graphs": [graph.debug_state() for graph in self.graphs],
        }


def _overlaps_itself(value: Any) -> bool:
    strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return strided and not has_elements_apart(value)


def _is_large(number: Any) -> bool:  # more than 64 bits; the ragged size of a nested tensor is not an int
    return type(number) is int and number.bit_length() > 63


def _is_plain_subclass(value: Any) -> bool:
    """Whether a value is of a tensor subclass that only adds Python methods."""
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
    """The node that AOTAutograd traced when it failed, if the message names one."""
    named = re.search(r"While executing %(\w+)", str(error))
    nodes = {node.name for node in gm.graph.nodes if node.op.startswith("call_")}
    return named[1] if named and named[1] in nodes else None
