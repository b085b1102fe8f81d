"""Traced calls: attributes the spans of a call's C++ trace to nodes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from staticrt.native import _C
from staticrt.runtime.eager_calls import EagerSpan, watch_eager
from staticrt.runtime.explain.programs import Node, PreparedView, Work, describe, nodes_of, to_shape


@dataclasses.dataclass(frozen=True)
class Step:
    """One timed step of a run.

    Args:
        key: the same for the same step of every call.
        work: what it does.
        begin_ns, end_ns: of `time.perf_counter_ns()`.
        inner_ns: the part of it that bodies of control flow took.
        release_ns: emptying the slots it used last.
    """

    key: tuple[Any, ...]
    work: Work
    begin_ns: int
    end_ns: int
    inner_ns: int
    release_ns: int


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one program, inside a call.

    Args:
        path: "prepared", "general", or "diverged" (began prepared, went on generally).
        depth: 0, or of the control flow around it.
        setup_ns: until the first step; alloc_ns of it is for memory.
        dealloc_ns: handing out outputs, giving back slots and memory.
        prepare_ns: making a prepared program from this run.
    """

    executable: _C.Executable
    path: str
    depth: int
    begin_ns: int
    end_ns: int
    setup_ns: int
    alloc_ns: int
    dealloc_ns: int
    prepare_ns: int
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """One traced call of a compiled callable: the runs inside, and what ran eagerly."""

    begin_ns: int
    end_ns: int
    runs: tuple[Run, ...]
    eager: tuple[EagerSpan, ...]

    @property
    def outside_ns(self) -> int:
        """Time spent neither in runs nor in eager calls: arguments, guards, Python between graphs."""
        inside = sum(run.end_ns - run.begin_ns for run in self.runs if run.depth == 0)
        return max(0, self.end_ns - self.begin_ns - inside - sum(e.end_ns - e.begin_ns for e in self.eager))


class Tracer:
    """Traces calls on this thread. Descriptions of programs are made once."""

    def __init__(self) -> None:
        # Keeps the objects alive, so that their ids stay unique.
        self._prepared: dict[int, tuple[Any, PreparedView]] = {}
        self._nodes: dict[int, tuple[Any, tuple[Node, ...]]] = {}
        self._executables: dict[int, int] = {}
        self._clock_ns = _C.trace_clock_ns()

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """Call `function` once, traced.

        Raises:
            InputError: this thread is being traced already.
        """
        _C.start_trace()
        raw: list[dict[str, Any]] = []
        try:
            with watch_eager() as eager:
                begin = time.perf_counter_ns()
                function(*args, **kwargs)
                end = time.perf_counter_ns()
        finally:
            raw = _C.stop_trace()
        return Call(begin, end, self._runs(raw), tuple(_outermost(eager)))

    def _runs(self, raw: list[dict[str, Any]]) -> tuple[Run, ...]:
        depths: list[int] = []
        for run in raw:
            depths.append(0 if run["parent"] < 0 else depths[run["parent"]] + 1)
        children: dict[int, list[dict[str, Any]]] = {}
        for run in raw:
            children.setdefault(run["parent"], []).append(run)
        return tuple(self._run(run, depths[i], children.get(i, [])) for i, run in enumerate(raw))

    def _run(self, raw: dict[str, Any], depth: int, children: list[dict[str, Any]]) -> Run:
        executable, prepared = raw["executable"], raw["prepared"]
        program = self._executables.setdefault(id(executable), len(self._executables))
        shapes = iter(raw["shapes"])
        steps = []
        inner = iter(children)
        child = next(inner, None)
        for index, is_node, begin, end, released in raw["steps"]:
            inside = 0
            while child is not None and child["begin_ns"] <= end:
                inside += child["end_ns"] - child["begin_ns"]
                child = next(inner, None)
            key: tuple[Any, ...]
            if is_node:
                work = self._node(executable, index, next(shapes))
                key = (program, "node", index)
            else:
                view = self._view(executable, prepared)
                work = view.steps[index]
                key = (program, id(prepared), index)
            took = max(0, end - begin - self._clock_ns) if end else 0
            steps.append(Step(key, work, begin, begin + took, min(inside, took), max(0, released - end)))
        if prepared is None:
            path = "general"
        else:
            path = "diverged" if any(step[1] for step in raw["steps"]) else "prepared"
        done = raw["steps_ns"] or raw["end_ns"]
        placed = raw["placed_ns"] or done
        return Run(
            executable=executable,
            path=path,
            depth=depth,
            begin_ns=raw["begin_ns"],
            end_ns=raw["end_ns"],
            setup_ns=placed - raw["begin_ns"],
            alloc_ns=placed - (raw["found_ns"] or placed),
            dealloc_ns=max(0, raw["end_ns"] - done - raw["recorded_ns"]) + sum(s.release_ns for s in steps),
            prepare_ns=raw["recorded_ns"],
            steps=tuple(steps),
        )

    def _view(self, executable: _C.Executable, prepared: _C.PreparedProgram) -> PreparedView:
        if id(prepared) not in self._prepared:
            self._prepared[id(prepared)] = (prepared, PreparedView(executable, prepared))
        return self._prepared[id(prepared)][1]

    def _node(self, executable: _C.Executable, index: int, shapes: tuple[Any, Any]) -> Work:
        if id(executable) not in self._nodes:
            self._nodes[id(executable)] = (executable, nodes_of(executable))
        node = self._nodes[id(executable)][1][index]
        reads, writes = ([to_shape(meta) for meta in metas] for metas in shapes)
        return describe([node], [(reads, writes)], "control" if node.bodies else node.kind, "general path")


def _outermost(spans: Sequence[EagerSpan]) -> list[EagerSpan]:
    """Without spans inside others; spans end in order."""
    kept: list[EagerSpan] = []
    for span in spans:
        while kept and kept[-1].begin_ns >= span.begin_ns:
            kept.pop()
        kept.append(span)
    return kept
