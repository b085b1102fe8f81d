"""Regions: what a differentiable graph runs as, compiled whole (`region_compiler.py`), in subregions, or eagerly."""

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
from staticrt.frontend.dynamo.resets import release_at_reset
from staticrt.frontend.reasons import raise_interrupt
from staticrt.frontend.thread_state import keeping_thread_state
from staticrt.native import _C
from staticrt.options import Options
from staticrt.runtime.explain.explanation import EagerReport, TraceReport
from staticrt.training.double_backward import Replay
from staticrt.training.graph_split import (
    Eager,
    example_values,
    is_large,
    needs_splitting,
    run_compiled,
    split,
    writes,
)
from staticrt.training.overlaps import draws_by_memory, held_memory, overlapping_writes, views_of_several
from staticrt.training.plans import CompiledGraph
from staticrt.training.region_compiler import RegionCompiler, Unfaithful, first_line
from staticrt.training.statistics import unread_inputs
from staticrt.training.unread import unread_effects

if TYPE_CHECKING:
    from staticrt.graphs.compiled import CapturedRuns

log = logging.getLogger(__name__)
_numbers = itertools.count()
_live: list[weakref.ref[Region]] = []


def regions() -> list[Region]:
    """Regions that are still in use, in the order in which they were compiled."""
    _live[:] = [ref for ref in _live if ref() is not None]
    return [region for region in (ref() for ref in _live) if region is not None]


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
        self.calls = 0
        self.is_released = False
        self._options = options
        self._inputs = tuple(_describe(value) for value in inputs)
        self._ints = [i for i, value in enumerate(inputs) if isinstance(value, torch.SymInt)]
        self._writes = any(writes(node) for node in gm.graph.nodes)
        self._eager: Callable[..., Any] = torch.compiler.disable(gm.forward)  # type: ignore[no-untyped-call]
        self._replay = Replay(self._eager, self.name, unread_inputs(gm))
        self._replay.graphs = options.graphs
        if any("autograd_function_apply" in str(node.target) for node in gm.graph.nodes):
            self._replay.refuses = "Dynamo records a custom autograd Function for first derivatives only"
        self._compiler = RegionCompiler(options, self.name, self._replay)
        self.eager: tuple[Eager, ...] = ()
        self._subregions: list[Region] = []
        self._failed = ""
        self._subclassed: list[int] | None = None
        self._has_wrappers = False
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
            return keeping_thread_state(lambda: self._compiler.compile(gm, inputs))
        except (OptionError, LoweringError):
            raise  # the options ask for this error
        except Exception as error:
            raise_interrupt(error)
            if torch_private.restarts_dynamo(error):
                raise
            kind = "" if isinstance(error, Unfaithful) else f"{type(error).__name__}: "
            reason = f"it cannot be differentiated ahead of time: {kind}{first_line(error)}"
            if self._options.fullgraph:
                raise TraceError(
                    f"cannot compile {self.name} for training: {reason}", fix="leave out fullgraph=True"
                ) from error
            failing = None if self._is_subregion else _failing_node(gm, error)
            log.info("%s: %s", self.name, reason)
        self._compiler = RegionCompiler(self._options, self.name, self._replay)
        if failing is not None:
            return self._compile_split(gm, {failing: reason})
        self._failed = reason
        return self._eager

    def _compile_split(
        self, gm: fx.GraphModule, unsupported: Mapping[str, str] | None = None
    ) -> Callable[..., Any]:
        """Compile the supported subregions; the other nodes run eagerly between them."""
        pieces = split(gm, self._options.min_region_nodes, unsupported)
        self.eager = pieces.eager
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

    def release(self) -> None:
        """Drop what was compiled; backwards that are pending keep what they need. Calls run eagerly from now on."""
        self.is_released = True
        self._run, self._subregions, self._subclassed = self._eager, [], None
        self._compiler.first, self._compiler.remembers, self._compiler.graphs = None, False, []

    def captured_runs(self) -> list[CapturedRuns]:
        """Programs that run captured (option `graphs`)."""
        subregions = [run for subregion in self._subregions for run in subregion.captured_runs()]
        plans = [plan for graph in self._compiler.graphs for _key, plan in graph.plans.items()]
        return subregions + [plan.captured for plan in plans if plan.captured is not None]

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        compiler = self._compiler
        if not compiler.operators_hold():
            self._replaced = "a library replaced the kernel or the definition of an operator"
            return self._eager(*inputs)
        self._replaced = ""
        if self._subclassed is None:  # Dynamo guards types, so those of the first call hold for all
            self._subclassed = [i for i, value in enumerate(inputs) if _is_plain_subclass(value)]
            self._has_wrappers = any(map(is_traceable_wrapper_subclass, inputs))
        if self._subclassed:  # Dynamo traced their methods; AOTAutograd refuses the class
            flat = list(inputs)
            for i in self._subclassed:
                flat[i] = flat[i].as_subclass(torch.Tensor)
            inputs = tuple(flat)
        # enable_grad() has no effect in inference mode, the nodes compute no forward-mode tangents, and programs take
        # 64-bit integers.
        if torch.is_inference_mode_enabled() or torch.autograd.forward_ad._current_level >= 0:
            return self._eager(*inputs)
        if any(is_large(inputs[i]) for i in self._ints):
            return self._eager(*inputs)
        if compiler.first is not None:
            run, compiler.first = compiler.first, None
            self.calls -= 1  # this call only traces
            return run(*inputs)
        if self._writes or compiler.written:
            memory = (inputs, compiler.written)
            # AOTAutograd would copy an input that overlaps itself, and write the copy back element by element.
            if _C.overlapping(*held_memory(*memory) if self._has_wrappers else memory):
                return self._eager(*inputs)
        try:
            if not compiler.remembers:
                return self._run(*inputs)
            with self._replay.recording(inputs):
                return self._run(*inputs)
        except Exception as error:
            # Eager takes larger numbers, and writes what comes before an error.
            beyond = isinstance(error, NumberError) and not self._has_effects
            if not self._failed_before_writes() and not beyond:
                raise
            return self._eager(*inputs)

    def _failed_before_writes(self) -> bool:
        """Whether the region writes inputs, and this thread's last run that raised had not written any yet."""
        forwards = [graph for graph in self._compiler.graphs if graph.role != "backward"]
        plans = [plan for graph in forwards for _key, plan in graph.plans.items()]
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
        return self._compiler.graphs + [graph for subregion in self._subregions for graph in subregion.graphs]

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
            executor="eager" if self._failed or self._replaced else f"{self._compiler.node} node",
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
            "node": self._compiler.node,
            "why not native": self._compiler.not_native,
            "calls": self.calls,
            "failed": self._failed,
            "eager": [dataclasses.asdict(item) for item in self.eager],
            "subregions": [subregion.name for subregion in self._subregions],
            "graphs": [graph.debug_state() for graph in self.graphs],
        }


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


def _failing_node(gm: fx.GraphModule, error: BaseException) -> str | None:
    """The node that AOTAutograd traced when it failed, if the message names one."""
    named = re.search(r"While executing %(\w+)", str(error))
    nodes = {node.name for node in gm.graph.nodes if node.op.startswith("call_")}
    return named[1] if named and named[1] in nodes else None
