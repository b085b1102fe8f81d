"""Functions that run cut into pieces: Dynamo cuts, each piece is captured or differentiated on its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from staticrt.frontend import budget
from staticrt.frontend.dynamo import NotCompiled, Parts
from staticrt.frontend.graph import KnownInputs
from staticrt.options import Options
from staticrt.part import Part

if TYPE_CHECKING:
    from staticrt.compiled import Engine

_UNPROVED = 8  # calls after which pieces that raise are the caller's error


class Pieces:
    """A function run in pieces with eager Python between them.

    Args:
        function: what to cut.
        make_engine: makes the engine of a piece that needs no gradients, from its function, its number and what is
            known of its arguments.
        options: checked options.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        make_engine: Callable[[Callable[..., Any], int, KnownInputs], Engine],
        options: Options,
    ) -> None:
        self.engines: list[Engine] = []
        self.regions: list[Any] = []  # pieces with their backward
        self._function = function
        self._make_engine = make_engine
        self._options = options
        self._inference: Parts | None = None
        self._training: Parts | None = None
        self._lock = threading.RLock()
        self._proved = 0  # calls without gradients that raised nothing
        self._calls = 0
        self._inferring = 0  # pieces without gradients

    @property
    def breaks(self) -> list[tuple[str, str]]:
        """(reason, model line) of each place where the function was cut."""
        return [at for parts in (self._inference, self._training) if parts is not None for at in parts.breaks]

    def infer(self, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Run without gradients.

        Returns:
            The result, and whether any piece of it ran compiled.

        Raises:
            NotCompiled: Dynamo gave up before the function ran, or one of the first calls raised and had written nothing:
                code that asks whether it is being compiled may fail where eager answers.
        """
        with self._lock:
            if self._inference is None:
                self._inference = Parts(self._function, self._make, self._options.dynamic)
        before = self._state(args, kwargs) if self._proved < _UNPROVED else None
        try:
            with budget.account(
                self._options.seconds_to_capture(), share=0.5
            ):  # the whole capture had as much
                result = self._run(self._inference, args, kwargs)
        except NotCompiled:
            raise
        except Exception as error:
            if before is None or self._state(args, kwargs) != before:
                raise
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise NotCompiled(f"in pieces it raises {what}") from error
        self._proved += 1
        return result

    def _state(self, args: Any, kwargs: Any) -> list[Any] | None:
        """What tells whether anything was written that a second run would write again: tensors, attributes and
        containers of the model, random numbers. None where an argument could hide more."""
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
        return [*told, torch.get_rng_state().numpy().tobytes()]

    def train(self, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """As `infer`, for results that need gradients: each piece is differentiated ahead of time."""
        with self._lock:
            if self._training is None:
                self._training = Parts(
                    self._function,
                    self._make,
                    self._options.dynamic,
                    fullgraph=self._options.fullgraph,
                    max_captures=self._options.max_captures,
                )
        return self._run(self._training, args, kwargs)

    def _run(self, parts: Parts, args: Any, kwargs: Any) -> tuple[Any, bool]:
        before = self._calls
        with self._step(args):
            result = parts(*args, **kwargs)
        return result, self._calls != before

    def _step(self, args: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """For graph trees, the pieces of one call are one step."""
        if self._options.graphs is False:
            return contextlib.nullcontext()
        from staticrt.capture.compiled import step_of

        return step_of(self._options.graphs, args)

    def _make(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from staticrt.backend import needs_gradients, region_of

        piece: Callable[..., Any]
        if needs_gradients(gm, inputs):
            piece = region_of(gm, inputs, self._options)
            self.regions.append(piece)
        else:
            number = self._inferring
            self._inferring += 1

            def make(function: Callable[..., Any], known: KnownInputs) -> Engine:
                engine = self._make_engine(function, number, known)
                self.engines.append(engine)
                return engine

            piece = Part(gm, inputs, make)

        def run(*args: Any) -> Any:
            self._calls += 1
            return piece(*args)

        return run
