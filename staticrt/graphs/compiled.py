"""Runs compiled programs under graph trees (`graphs=True`)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.errors import CaptureError
from staticrt.frontend.graph import TracedGraph
from staticrt.graphs.context import GraphContext
from staticrt.graphs.defaults import default_context
from staticrt.graphs.generations import Generations, Pending
from staticrt.graphs.manager import is_capturing
from staticrt.graphs.report import GraphReport
from staticrt.graphs.wrap import WrappedFunction
from staticrt.runtime.executable import Executable


def context_of(graphs: bool | GraphContext, inputs: Sequence[Any]) -> GraphContext:
    """The context for calls on these inputs: the given one, or this thread's default on the first tensor's device."""
    if isinstance(graphs, GraphContext):
        return graphs
    for value in inputs:
        if isinstance(value, torch.Tensor):
            return default_context(value.device)
    return default_context()


def new_pending(graphs: bool | GraphContext, inputs: Sequence[Any]) -> Pending:
    """Register a pending backward of a forward on these inputs. Keep the result until the backward has run."""
    return context_of(graphs, inputs).new_pending()


def step_of(graphs: bool | GraphContext, inputs: Sequence[Any]) -> Generations:
    """`with step_of(…):` makes the calls of captured programs inside one step."""
    return context_of(graphs, inputs).step()


class CapturedRuns:
    """Runs of one program, captured and replayed in the tree of the calling thread, or in a given one.

    Args:
        run: flat inputs in a list -> flat outputs; empties the list. Must not refer to this object.
        graphs: True: the default context of each thread and device; or a context.
        name: for reports.
        static_inputs: positions of parameters and buffers.
        mutated_inputs: positions of inputs that the program writes.
        unused_ints: positions of integers that no operator reads.
        input_names: one per input.
        mode: "inference", "forward" or "backward".
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        graphs: bool | GraphContext,
        name: str,
        *,
        static_inputs: Sequence[int] = (),
        mutated_inputs: Sequence[int] = (),
        unused_ints: Sequence[int] = (),
        input_names: Sequence[str] = (),
        mode: str = "inference",
    ) -> None:
        self._run = run
        self._graphs = graphs
        self._name = name
        self._options: dict[str, Any] = {
            "static_inputs": tuple(static_inputs),
            "mutated_inputs": tuple(mutated_inputs),
            "unused_ints": tuple(unused_ints),
            "input_names": tuple(input_names),
            "mode": mode,
        }
        # Each context keeps its captures of this program until the context or this object dies.
        self._contexts: weakref.WeakSet[GraphContext] = weakref.WeakSet()

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Outputs for flat inputs; `inputs` is emptied."""
        with torch.no_grad():
            context = context_of(self._graphs, inputs)
            if (
                context.closed and self._options["mode"] == "backward"
            ):  # the context was closed after its forward
                return self._run(inputs)
            outputs: Sequence[Any] = self._wrapped(context)(inputs)
        return outputs

    def forget(self) -> None:
        """Drop the captures of this program; the next calls capture again.

        Raises:
            CaptureError: a captured call of this thread is under way.
        """
        if is_capturing():
            raise CaptureError(
                f"captures of {self._name} cannot be dropped while one of them is being made",
                fix="drop them after the call",
            )
        for context in self.contexts:
            found: WrappedFunction | None = context.programs.get(self)
            if found is not None:
                found.forget()

    @property
    def contexts(self) -> list[GraphContext]:
        """The contexts in which this program has run."""
        return list(self._contexts)

    def _wrapped(self, context: GraphContext) -> WrappedFunction:
        found: WrappedFunction | None = context.programs.get(self)
        if found is None:
            found = context.wrap(self._run, boxed=True, name=self._name, **self._options)
            found = context.programs.setdefault(self, found)
            self._contexts.add(context)
        return found


def reports(runs: Sequence[CapturedRuns]) -> list[GraphReport]:
    """One report per context in which any of these programs has run."""
    contexts = {id(context): context for run in runs for context in run.contexts}
    return [context.explain() for context in sorted(contexts.values(), key=lambda context: context.number)]


class CapturedExecutable:
    """An executable whose runs are captured and replayed.

    Args:
        inner: what runs; must not refer to this object.
        traced: the graph it runs.
        graphs: see `CapturedRuns`.
    """

    def __init__(
        self, inner: Executable, traced: TracedGraph, graphs: bool | GraphContext, name: str
    ) -> None:
        self.inner = inner
        number = len(traced.values)
        placeholders = traced.module.graph.find_nodes(op="placeholder")

        def run(inputs: list[Any]) -> Sequence[Any]:
            given = list(inputs)
            inputs.clear()
            return inner.run(given)

        self.captured = CapturedRuns(
            run,
            graphs,
            name,
            static_inputs=range(number),
            mutated_inputs=[i for i, spec in enumerate(traced.inputs) if spec.mutated],
            unused_ints=[i for i, node in enumerate(placeholders) if not node.users and i >= number],
            input_names=[spec.name for spec in traced.inputs],
        )

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        return self.captured.run(list(flat_inputs))

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)
