"""Functions with graph breaks: Dynamo splits them, and each partial graph is traced or differentiated by itself."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from staticrt import locks, tuning
from staticrt.executor.partial_graph import GraphExecutor, PartialGraph
from staticrt.frontend import budget
from staticrt.frontend.dynamo.dynamo import NotCompiled, PartialGraphs
from staticrt.frontend.dynamo.resets import CompiledGraph
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.guards.impure_calls import EffectsSeen
from staticrt.frontend.reasons import raise_interrupt
from staticrt.options import Options
from staticrt.training.regions import needs_gradients, region_of

if TYPE_CHECKING:
    from staticrt.training.aot_region import Region


class GraphSplits:
    """A function run as partial graphs with eager Python between them.

    Args:
        function: what to split.
        make_executor: makes the executor of a partial graph that needs no gradients, from its function, its number and what is
            known of its arguments.
        options: checked options.
        name: for the progress display.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        make_executor: Callable[[Callable[..., Any], int, KnownInputs], GraphExecutor],
        options: Options,
        name: str,
    ) -> None:
        self._function = function
        self._compiling = f"compiling {name}" if options.progress else ""
        self._maker = _Maker(make_executor, options)
        weakref.finalize(self, self._maker.release).atexit = False
        self._options = options
        self._inference: PartialGraphs | None = None
        self._training: PartialGraphs | None = None
        self._lock = locks.reentrant()
        self._proved = 0  # calls without gradients that raised nothing
        self._raised: tuple[Any, str] | None = None  # what the last call was given and raised

    @property
    def executors(self) -> list[GraphExecutor]:
        """Of partial graphs without gradients."""
        return [executor for graph in self._maker.inferring for executor in graph.executors]

    @property
    def regions(self) -> list[Any]:
        """Partial graphs with their backward."""
        return [region for region in self._maker.training if not region.is_released]

    @property
    def breaks(self) -> list[tuple[str, str]]:
        """(reason, model line) of each graph break."""
        return [
            at for graphs in (self._inference, self._training) if graphs is not None for at in graphs.breaks
        ]

    def forget(self) -> None:
        """Drop what was compiled; later calls compile again."""
        with self._lock:
            self._inference = self._training = None

    def infer(self, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Run without gradients.

        Returns:
            The result, and whether any partial graph of it ran compiled.

        Raises:
            NotCompiled: Dynamo gave up before the function ran, or one of the first calls raised and had no effect that
                eager would repeat. Code that checks whether it is being compiled may raise where eager does not. After a
                call that raised and had effects, the next call like it raises this at once.
        """
        with self._lock:
            if self._inference is None:
                self._inference = PartialGraphs(
                    self._function, self._maker, self._options.dynamic, shown=self._compiling
                )
        try:
            leaves = tree_leaves((args, kwargs))
        except RecursionError as error:
            raise NotCompiled("an argument is a container that holds itself") from error
        given = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else type(x) for x in leaves]
        raised, self._raised = self._raised, None
        if raised is not None and raised[0] == given:
            raise NotCompiled(f"split at graph breaks, it raises {raised[1]}")
        before = self._state(args, kwargs) if self._proved < tuning.UNPROVED_SPLIT_CALLS else None
        effects = EffectsSeen()
        try:
            with (
                contextlib.nullcontext() if before is None else effects,
                budget.account(self._options.seconds_to_trace(), share=0.5),  # the whole trace had as much
            ):
                result = self._run(self._inference, args, kwargs)
        except NotCompiled:
            raise
        except Exception as error:
            inner = getattr(error, "inner_exception", None)  # Dynamo wraps what compiling raises
            raise_interrupt(inner if isinstance(inner, BaseException) else error)
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            if before is None or effects.any or self._state(args, kwargs) != before:
                self._raised = (given, what)
                raise
            raise NotCompiled(f"split at graph breaks, it raises {what}") from error
        self._proved += 1
        return result

    def _state(self, args: Any, kwargs: Any) -> list[Any] | None:
        """Versions and identities that a write of the function changes: of tensors, attributes and containers of the
        model, and the states of generators. None where an argument may hold more, or a generator does not tell."""
        leaves = tree_leaves((args, kwargs))
        if not all(isinstance(leaf, (torch.Tensor, int, float, str, type(None))) for leaf in leaves):
            return None
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        told: list[Any] = []
        for value in (self._function, getattr(self._function, "__self__", None)):
            if not isinstance(value, torch.nn.Module):
                continue
            tensors += [*value.parameters(), *value.buffers()]
            for module in value.modules():
                for name, attribute in vars(module).items():
                    told.append((name, id(attribute)))
                    if isinstance(attribute, (list, dict, set)):
                        told.append([id(item) for item in attribute])
        told += [tensor._version for tensor in tensors if not tensor.is_inference()]
        accelerator = torch.accelerator.current_accelerator()
        devices = {
            tensor.device for tensor in tensors if accelerator and tensor.device.type == accelerator.type
        }
        try:
            generators = [torch.get_device_module(x).get_rng_state(x) for x in sorted(devices, key=str)]
        except RuntimeError:  # CUDA's, while a graph is captured
            return None
        return [*told, *(state.numpy().tobytes() for state in (torch.get_rng_state(), *generators))]

    def train(self, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """As `infer`, for results that need gradients: each partial graph is differentiated ahead of time."""
        with self._lock:
            if self._training is None:
                self._training = PartialGraphs(
                    self._function,
                    self._maker,
                    self._options.dynamic,
                    shown=self._compiling,
                    fullgraph=self._options.fullgraph,
                    max_traces=self._options.max_traces,
                )
        return self._run(self._training, args, kwargs)

    def _run(self, graphs: PartialGraphs, args: Any, kwargs: Any) -> tuple[Any, bool]:
        before = self._maker.calls
        with self._step(args):
            result = graphs(*args, **kwargs)
        return result, self._maker.calls != before

    def _step(self, args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """Make the partial graphs of one call one step of graph trees."""
        if self._options.graphs is False:
            return contextlib.nullcontext()
        from staticrt.graphs.compiled import step_of

        return step_of(self._options.graphs, args)


class _Maker:
    """Makes the partial graphs of a function, which it does not refer to.

    Dynamo may keep all of them and this object permanently (`frontend/dynamo/resets.py`).

    Args:
        make_executor, options: as of `GraphSplits`.
    """

    def __init__(
        self, make_executor: Callable[[Callable[..., Any], int, KnownInputs], GraphExecutor], options: Options
    ) -> None:
        self.inferring: list[PartialGraph] = []  # partial graphs without gradients
        self.training: list[Region] = []
        self.calls = 0
        self._num_inferring = 0
        self._make_executor = make_executor
        self._options = options

    def release(self) -> None:
        with contextlib.ExitStack() as releases:
            graphs: list[CompiledGraph] = [*self.inferring, *self.training]
            for graph in graphs:
                releases.callback(graph.release)

    def _drop_released(self) -> None:
        self.inferring = [graph for graph in self.inferring if not graph.is_released]
        self.training = [region for region in self.training if not region.is_released]

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph: Region | PartialGraph
        self._drop_released()
        if needs_gradients(gm, inputs):
            graph = region_of(gm, inputs, self._options)
            self.training.append(graph)
        else:
            number = self._num_inferring
            self._num_inferring += 1

            def make(function: Callable[..., Any], known: KnownInputs) -> GraphExecutor:
                return self._make_executor(function, number, known)

            graph = PartialGraph(gm, inputs, make)
            self.inferring.append(graph)

        def run(*args: Any) -> Any:
            self.calls += 1
            return graph(*args)

        return run
