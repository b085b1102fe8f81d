"""What a compiled callable can tell about itself: one mixin, one method per report.

A compiled module is still the module: where the model itself has an attribute of the same name (`metrics`,
`profile`, …), the model's wins, and the report is reached as `staticrt.report.tools.Tools.metrics(compiled)`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from staticrt.errors import InputError
from staticrt.report.graphs import Graph, input_names

if TYPE_CHECKING:
    from staticrt.ahead import Readiness
    from staticrt.report.compare import CompareReport
    from staticrt.report.metrics import Metrics
    from staticrt.report.profile import ProfileReport

F = TypeVar("F", bound=Callable[..., Any])


class _Tool:
    """A method that steps back where the wrapped module has an attribute of its name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.function
        module = instance.__dict__.get("_module")
        if module is not None and _has_own(module, self.name):
            return getattr(module, self.name)
        return types.MethodType(self.function, instance)


def _has_own(module: torch.nn.Module, name: str) -> bool:
    found = (module.__dict__, module._parameters, module._buffers, module._modules)
    return any(name in names for names in found) or hasattr(type(module), name)


def _name_of(compiled: Any) -> str:
    engine = getattr(compiled, "_engine", None)
    return str(compiled.name if engine is None else engine.name)


def graphs_of(compiled: Any) -> list[Graph]:
    """The graphs of a compiled callable, or of a model from an archive, that the C++ runtime runs.

    They have the numbers of `explain()`. A graph compiled for training has programs of its own for forward, backward and
    inference; the first has the graph's name.
    """
    engine = getattr(compiled, "_engine", None)
    if engine is None:
        return [
            Graph(f"graph {number}", capture.native.executable, _archive_names(capture))
            for number, capture in enumerate(compiled._captures)
        ]
    found: list[Graph] = []
    parts = [entry for part in engine.pieces.engines for entry in part._order]
    for number, item in enumerate([*engine._order, *engine.pieces.regions, *parts]):
        name = f"graph {number}"
        if hasattr(item, "captured"):
            native = getattr(item.executable, "native", None)
            if native is not None:
                found.append(Graph(name, native, input_names(item.captured)))
            continue
        for graph in item.graphs:
            for _key, plan in graph.plans.items():
                if plan.native is not None:
                    first = all(other.name != name for other in found)
                    found.append(Graph(name if first else f"{name}, {graph.role}", plan.native, ()))
    return found


def _archive_names(capture: Any) -> tuple[str, ...]:
    """Names of a loaded program's inputs, "" for the model's own tensors, which come first."""
    users = sorted((leaf["input"], leaf["name"]) for leaf in capture.leaves if leaf["input"] >= 0)
    return ("",) * len(capture.values) + tuple(name for _position, name in users)


def tool(function: F) -> F:
    return cast(F, _Tool(function))


class Tools:
    """Reports on a compiled callable."""

    @tool
    def prepare(self, *args: Any, **kwargs: Any) -> Readiness:
        """Do ahead of a call what its first run would do: capture, plan its memory, choose and bind kernels, pack weights.

        The model does not run on the arguments, so contents do not matter: tensors on the meta device stand for CPU
        tensors of their sizes and strides. Convolutions, matrix products and what takes more than 64 MiB follow
        rules; other operators run on zeros, one at a time. For calls that record no gradients.

        Returns:
            Whether the next such call is prepared, its planned peak, and otherwise why: where only a run shows
            what data or a custom operator makes, the first call prepares.

        Raises:
            CaptureError: with `fullgraph=True`, the model cannot be captured whole.
        """
        from staticrt import ahead

        engine = getattr(self, "_engine", None)
        if engine is None:
            return ahead.prepare_loaded(self, args, kwargs)  # type: ignore[arg-type]
        return engine.prepare(args, kwargs)  # type: ignore[no-any-return]

    @tool
    def profile(self, *args: Any, runs: int = 20, **kwargs: Any) -> ProfileReport:
        """Where the time of a call with these arguments goes, node by node.

        Args:
            args, kwargs: of the call. A model argument named `runs` goes through
                `staticrt.report.profile.profile`.
            runs: traced calls; figures are medians.

        Returns:
            A report to print, `to_json()`, or `to_chrome_trace(path)`.
        """
        from staticrt.report.profile import profile

        report = profile(self, args, kwargs, name=_name_of(self), runs=runs)  # type: ignore[arg-type]
        hints = list(report.hints)
        engine = getattr(self, "_engine", None)
        if engine is not None and torch.is_grad_enabled() and engine._wants_gradients():
            hints.append("gradients were recorded for training; to infer, call under torch.no_grad()")
        for item in () if engine is None else engine.explain().eager:
            if item.what == "between parts":
                place = f" at {item.where}" if item.where else ""
                hints.append(f"the model is cut{place}: {item.reason}")
            elif item.calls:
                hints.append(f"ran eagerly: {item.reason}" + (f" at {item.where}" if item.where else ""))
        return dataclasses.replace(report, hints=tuple(dict.fromkeys(hints)))

    @tool
    def metrics(self, *args: Any, runs: int = 20, **kwargs: Any) -> Metrics:
        """Counts, memory and signatures of every graph; with arguments, also the times of calls with them."""
        from staticrt.report.metrics import metrics_of
        from staticrt.report.profile import profile

        report = None
        if args or kwargs:
            report = profile(self, args, kwargs, name=_name_of(self), runs=runs)  # type: ignore[arg-type]
        engine = getattr(self, "_engine", None)
        fast = engine.fast if engine is not None else self._fast  # type: ignore[attr-defined]
        return metrics_of(graphs_of(self), fast.calls, report)

    @tool
    def compare(
        self, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any
    ) -> CompareReport:
        """Run eager and compiled on these arguments and find the first node that is off.

        Args:
            rtol, atol: tolerances as of `torch.testing.assert_close`; its defaults per dtype if None.

        Returns:
            A report; `report.ok`, or the stage (capture, pass, node) where results part.
        """
        from staticrt.report.compare import compare

        engine = getattr(self, "_engine", None)
        if engine is None:
            raise InputError(
                "a model from an archive has no eager form to compare with",
                fix="compare the model it was saved from, or torch.export.load's",
            )
        return compare(engine, args, kwargs, rtol=rtol, atol=atol)

    @tool
    def plot_memory(self, path: str | Path, graph: int = 0, signature: int = -1) -> None:
        """Draw the planned memory of one prepared program: who holds which bytes while which node runs.

        Args:
            path: .svg, .html, or .png (needs matplotlib).
            graph: number of the captured graph, as in `explain()`.
            signature: number of its prepared signature; the last one by default.

        Raises:
            InputError: no such graph, or nothing is prepared yet.
        """
        from staticrt.report.arena_plot import plot_arena

        plot_arena(graphs_of(self), graph, signature).save(path)

    @tool
    def draw(self, path: str | Path, graph: int = 0) -> None:
        """Draw a captured graph: operators, shapes, fused chains, what is planned and what falls back.

        Args:
            path: .svg, .html, .png (needs matplotlib), or .dot (Graphviz text).
            graph: number of the captured graph, as in `explain()`.

        Raises:
            InputError: no such graph.
        """
        from staticrt.report.graph_plot import draw_graph

        draw_graph(graphs_of(self), graph, path)
