"""A snapshot of an executor's state, which reports, `explain()` and archives read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from staticrt.executor.call_state import Route
from staticrt.options import Options
from staticrt.runtime.cached_trace import CachedTrace, Failure
from staticrt.runtime.explain.explanation import input_names
from staticrt.runtime.explain.inspectable import Graph


@dataclasses.dataclass(frozen=True)
class ExecutorState:
    """A snapshot of an executor.

    Args:
        name: for messages.
        function: what it runs.
        options: checked options.
        traces: those kept, in the order they were made.
        keyed: call key -> its traces, in the order in which they are looked at.
        routes: call key -> how its calls run that no trace accepts.
        failures: why traces failed, one for each key where one did.
        eager_calls: (what, reason, model line) -> calls that ran eagerly.
        regions: partial graphs with their backward.
        joint_traces: traces with their backward.
        joint_failures: why calls that need gradients have no joint trace.
        breaks: (reason, model line) of each graph break.
        partial_graphs: states of the executors that run partial graphs without gradients.
        fast_calls: calls that the C++ fast path served.
    """

    name: str
    function: Callable[..., Any]
    options: Options
    traces: tuple[CachedTrace, ...]
    keyed: Mapping[tuple[Any, ...], tuple[CachedTrace, ...]]
    routes: Mapping[tuple[Any, ...], Route]
    failures: tuple[Failure, ...]
    eager_calls: Mapping[tuple[str, str, str], int]
    regions: tuple[Any, ...]
    joint_traces: tuple[CachedTrace, ...]
    joint_failures: tuple[Failure, ...]
    breaks: tuple[tuple[str, str], ...]
    partial_graphs: tuple[ExecutorState, ...]
    fast_calls: int

    def graphs(self) -> list[Graph]:
        """See `Inspectable.graphs`."""
        found: list[Graph] = []
        partial = [trace for graph in self.partial_graphs for trace in graph.traces]
        for number, item in enumerate([*self.traces, *self.regions, *partial]):
            name = f"graph {number}"
            if isinstance(item, CachedTrace):
                native = getattr(item.executable, "native", None)
                if native is not None:
                    found.append(Graph(name, native, input_names(item.traced)))
                continue
            for graph in item.graphs:
                for _key, plan in graph.plans.items():
                    if plan.native is not None:
                        first = all(other.name != name for other in found)
                        found.append(Graph(name if first else f"{name}, {graph.role}", plan.native, ()))
        return found

    def captured_runs(self) -> list[Any]:
        """Programs whose runs are captured, with the option `graphs`."""
        traces = [getattr(trace.executable, "captured", None) for trace in self.all_traces()]
        runs = [run for run in traces if run is not None]
        return runs + [run for region in self.regions for run in region.captured_runs()]

    def drop_plans(self) -> None:
        """Drop execution plans and captures of all programs."""
        for run in self.captured_runs():
            run.forget()
        natives = [graph.native for graph in self.graphs()]
        for trace in self.joint_traces:
            joint: Any = trace.executable
            natives.append(joint.native)
            plans = [plan for graph in joint.backward for _key, plan in graph.plans.items()]
            natives += [plan.native for plan in plans if plan.native is not None]
        for native in natives:
            native.drop_plans()

    def all_traces(self) -> Iterator[CachedTrace]:
        """Its own traces, then those of its partial graphs."""
        yield from self.traces
        for graph in self.partial_graphs:
            yield from graph.traces
