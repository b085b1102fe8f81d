"""`explain()` of an executor: its traces, what it runs eagerly, its graph breaks and captured graphs."""

from __future__ import annotations

import dataclasses

from staticrt.executor.state import ExecutorState
from staticrt.runtime.executable import ReferenceExecutable
from staticrt.runtime.explain.explanation import EagerReport, Explanation, trace_report


def explanation(state: ExecutorState) -> Explanation:
    """What was compiled, what runs eagerly, and why."""
    traces = [trace_report(trace) for trace in state.traces]
    traces += [
        dataclasses.replace(trace_report(trace), route="training", executor="native node, joint trace")
        for trace in state.joint_traces
    ]
    traces += [region.report() for region in state.regions]
    traces += [
        dataclasses.replace(trace_report(trace), route="partial")
        for graph in state.partial_graphs
        for trace in graph.traces
    ]
    eager = [EagerReport(*key, calls=count) for key, count in sorted(state.eager_calls.items()) if count]
    eager += [item for region in state.regions for item in region.eager_reports()]
    eager += [EagerReport("graph break", reason, where, 0) for reason, where in state.breaks]
    eager += [item for graph in state.partial_graphs for item in explanation(graph).eager]
    notes = [
        f"not traced whole: {failure.reason}" + (f" at {failure.where}" if failure.where else "")
        for failure in dict.fromkeys(state.failures)
    ]
    notes += [
        f"not traced with its backward: {failure.reason}" + (f" at {failure.where}" if failure.where else "")
        for failure in dict.fromkeys(state.joint_failures)
    ]
    notes += [
        f"graph {number} runs operator by operator, outside the runtime: {trace.executable.reason}"
        for number, trace in enumerate(state.traces)
        if isinstance(trace.executable, ReferenceExecutable) and trace.executable.reason
    ]
    notes += _weight_notes(state)
    return Explanation(state.name, tuple(traces), tuple(eager), (*notes, *_graph_notes(state)))


def _weight_notes(state: ExecutorState) -> list[str]:
    """Inference tensors among the weights, which have no version counter that shows writes."""
    if state.options.freeze is not None:
        return []
    uncounted = {
        id(value)
        for trace in state.all_traces()
        for spec, value in trace.own_tensors()
        if not spec.mutated and value.is_inference()
    }
    if not uncounted:
        return []
    return [
        f"{len(uncounted)} weights were made inside torch.inference_mode(), where writes are not counted: what is "
        "made of them (packed, folded weights) is checked against all their bytes in every call, or not kept "
        "where that would cost more. Calls are slower for it; build or load the model outside of it (calls may "
        "be inside), or say freeze=True if they never change"
    ]


def _graph_notes(state: ExecutorState) -> list[str]:
    """What graph capture did, for each tree that programs of this callable run in."""
    if state.options.graphs is False:
        return []
    from staticrt.graphs.compiled import reports

    return [str(report) for report in reports(state.captured_runs())]
