"""A part that Dynamo cut out, with what was made of each set of weights it is called with.

Dynamo hands a module's parameters and buffers to its graphs as arguments, and runs one graph for all modules of one
kind: twelve layers that are compiled one by one share theirs. What is made of weights (packed matrices, folded batch
norms) belongs to one set of them, so each set gets an engine. Which weights a call brings is told by the parameters'
identities. That only chooses where to look: an engine whose weights are others after all makes anew what it had made
of them (`csrc/runtime/fixed_values.h`), so that the answer never depends on the choice.

With dynamic sizes, Dynamo hands over a Python float as a tensor that the graph takes `.item()` of. Captures need the
number itself (an `eps` decides nothing, but operators want a number), so it is taken before.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from staticrt.frontend.dynamo import known_inputs, take_numbers
from staticrt.frontend.graph import KnownInputs
from staticrt.subclasses import Unwrapped

if TYPE_CHECKING:
    from staticrt.compiled import Engine

# Sets of weights that keep what was made of them: the layers of a deep model. Calls with further ones keep nothing.
_MAX_SETS = 64


class Part:
    """Runs one graph of Dynamo without gradients.

    Args:
        gm: the graph, on flat arguments; it may be changed.
        inputs: example arguments.
        make_engine: a new engine of the graph's function, for what is known of its arguments.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        make_engine: Callable[[Callable[..., Any], KnownInputs], Engine],
    ) -> None:
        self._make_engine = make_engine
        self._known = known = known_inputs(gm, inputs)
        self._told_by = tuple(i for i in sorted(known.weights) if isinstance(inputs[i], torch.nn.Parameter))
        self._numbers = take_numbers(gm, inputs)
        self._unwrapped = Unwrapped(gm.forward, inputs) if Unwrapped.serves(inputs, known) else None
        if self._unwrapped is not None:
            self._known = self._unwrapped.known(inputs, known)
        self._function = self._unwrapped or gm.forward
        self._engines: dict[tuple[int, ...], Engine] = {}
        self._alive: dict[tuple[int, ...], weakref.ref[torch.Tensor]] = {}
        self._other: Engine | None = None
        self._lock = threading.Lock()

    def __call__(self, *flat: Any) -> Any:
        key = tuple([id(flat[i]) for i in self._told_by])
        if self._numbers:
            values = list(flat)
            for i in self._numbers:
                values[i] = flat[i].item()
            flat = tuple(values)
        engine = self._engines.get(key) or self._engine(key, flat)
        return engine.fast.call(*(flat if self._unwrapped is None else self._unwrapped.take_apart(flat)))

    def _engine(self, key: tuple[int, ...], flat: Sequence[Any]) -> Engine:
        with self._lock:
            if key in self._engines:
                return self._engines[key]
            if len(self._engines) < _MAX_SETS:
                engine = self._engines[key] = self._make_engine(self._function, self._known)
                if key:
                    self._alive[key] = weakref.ref(flat[self._told_by[0]], self._forget(key))
                return engine
            if self._other is None:
                self._other = self._make_engine(
                    self._function, dataclasses.replace(self._known, weights=frozenset())
                )
            return self._other

    def _forget(self, key: tuple[int, ...]) -> Callable[[object], None]:
        """What was made of weights goes when they do."""
        engines = self._engines

        def forget(_gone: object) -> None:
            engines.pop(key, None)

        return forget
