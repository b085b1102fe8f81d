"""What a compiled callable can tell about itself: one mixin, one method per report.

A compiled module is still the module: where the model itself has an attribute of the same name (`metrics`,
`profile`, …), the model's wins, and the report is reached as `staticrt.tools.report.inspection.Tools.metrics(compiled)`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError
from staticrt.executor.executor import Executor
from staticrt.executor.prepare import example_arguments
from staticrt.frontend.progress import each
from staticrt.runtime.explain.inspectable import Inspectable

if TYPE_CHECKING:
    from staticrt.executor.prepare import Readiness
    from staticrt.tools.report.compare import CompareReport
    from staticrt.tools.report.metrics import Metrics
    from staticrt.tools.report.profile import ProfileReport

F = TypeVar("F", bound=Callable[..., Any])


class _Tool:
    """A method that gives precedence to an attribute of the same name of the wrapped module."""

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


def inspectable(compiled: Any) -> Inspectable:
    """What can be asked of a compiled callable, or of a model from an archive."""
    found: Inspectable = compiled.__inspectable__()
    return found


def _sizes(call: Any) -> str:
    """The sizes of a call's tensors: "32x64, 32"."""
    leaves = pytree.tree_leaves(call)
    return ", ".join("x".join(map(str, leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))


def tool(function: F) -> F:
    return cast(F, _Tool(function))


class Tools:
    """Reports on a compiled callable."""

    @tool
    def prepare(self, *args: Any, **kwargs: Any) -> Readiness:
        """Do ahead of a call what its first run would do: trace, plan its memory, choose and bind kernels, pack weights.

        The model does not run on the arguments, so contents do not matter: tensors on the meta device stand for CPU
        tensors of their sizes and strides. Convolutions, matrix products and what takes more than 64 MiB follow
        rules; other operators run on zeros, one at a time. For calls that record no gradients.

        Returns:
            Whether the next such call is prepared, its planned peak, and otherwise why: where only a run shows
            what data or a custom operator makes, the first call prepares.

        Raises:
            TraceError: with `fullgraph=True`, the model cannot be traced whole.
        """
        executor = inspectable(self)
        assert isinstance(executor, Executor)  # models from archives have a method of their own
        return executor.prepare(args, kwargs)

    @tool
    def prepare_many(self, calls: Iterable[Any]) -> list[Readiness]:
        """`prepare` for several calls, such as all batch sizes of a server, with a progress bar.

        The bar is shown after a second, on a terminal and in notebooks, unless the model was compiled with `progress=False`.

        Args:
            calls: of each call a tuple or list of positional arguments, a dict of keyword arguments, or one tensor.

        Returns:
            What `prepare` says of each, in order.
        """
        found = inspectable(self)
        is_shown = not isinstance(found, Executor) or found.options.progress
        examples = map(example_arguments, each(list(calls), _sizes, f"preparing {found.name}", is_shown))
        if isinstance(found, Executor):  # a model may have an attribute `prepare` of its own
            return [found.prepare(*example) for example in examples]
        return [self.prepare(*args, **kwargs) for args, kwargs in examples]

    @tool
    def profile(self, *args: Any, runs: int = 20, **kwargs: Any) -> ProfileReport:
        """Where the time of a call with these arguments goes, node by node.

        Args:
            args, kwargs: of the call. A model argument named `runs` goes through
                `staticrt.tools.report.profile.profile`.
            runs: traced calls; figures are medians.

        Returns:
            A report to print, `to_json()`, or `to_chrome_trace(path)`.
        """
        from staticrt.tools.report.profile import profile

        report = profile(self, args, kwargs, name=inspectable(self).name, runs=runs)  # type: ignore[arg-type]
        hints = list(report.hints)
        found = inspectable(self)
        if torch.is_grad_enabled() and found.wants_gradients():
            hints.append("gradients were recorded for training; to infer, call under torch.no_grad()")
        for item in found.explain().eager:
            if item.what == "graph break":
                place = f" at {item.where}" if item.where else ""
                hints.append(f"graph break{place}: {item.reason}")
            elif item.calls:
                hints.append(f"ran eagerly: {item.reason}" + (f" at {item.where}" if item.where else ""))
        return dataclasses.replace(report, hints=tuple(dict.fromkeys(hints)))

    @tool
    def metrics(self, *args: Any, runs: int = 20, **kwargs: Any) -> Metrics:
        """Counts, memory and signatures of every graph; with arguments, also the times of calls with them."""
        from staticrt.tools.report.metrics import metrics_of
        from staticrt.tools.report.profile import profile

        report = None
        if args or kwargs:
            report = profile(self, args, kwargs, name=inspectable(self).name, runs=runs)  # type: ignore[arg-type]
        found = inspectable(self)
        return metrics_of(found.graphs(), found.fast_calls, report)

    @tool
    def compare(
        self, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any
    ) -> CompareReport:
        """Run eager and compiled on these arguments and find the first node that differs.

        Args:
            rtol, atol: tolerances as of `torch.testing.assert_close`; its defaults per dtype if None.

        Returns:
            A report; `report.ok`, or the stage (trace, pass, node) where results differ.
        """
        from staticrt.tools.report.compare import compare

        executor = inspectable(self)
        if not isinstance(executor, Executor):
            raise InputError(
                "a model from an archive has no eager form to compare with",
                fix="compare the model it was saved from, or torch.export.load's",
            )
        return compare(executor, args, kwargs, rtol=rtol, atol=atol)

    @tool
    def plot_memory(self, path: str | Path, graph: int = 0, signature: int = -1) -> None:
        """Draw the planned memory of one prepared program: which value holds which bytes at which node.

        Args:
            path: .svg, .html, or .png (needs matplotlib).
            graph: number of the traced graph, as in `explain()`.
            signature: number of its prepared signature; the last one by default.

        Raises:
            InputError: no such graph, or nothing is prepared yet.
        """
        from staticrt.tools.report.arena_plot import plot_arena

        plot_arena(inspectable(self).graphs(), graph, signature).save(path)

    @tool
    def draw(self, path: str | Path, graph: int = 0) -> None:
        """Draw a traced graph: operators, shapes, fused chains, what is planned and what falls back.

        Args:
            path: .svg, .html, .png (needs matplotlib), or .dot (Graphviz text).
            graph: number of the traced graph, as in `explain()`.

        Raises:
            InputError: no such graph.
        """
        from staticrt.tools.report.graph_plot import draw_graph

        draw_graph(inspectable(self).graphs(), graph, path)
