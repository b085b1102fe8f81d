"""Runs one graph of Dynamo, with an executor for each set of weights that it is called with.

Dynamo passes a module's parameters and buffers to its graphs as arguments, and runs one graph for all modules of one
kind: twelve layers that are compiled one by one share one graph. Values derived from weights (packed matrices, folded
batch norms) belong to one set of weights, so each set gets an executor, found by the parameters' identities. A wrong
choice only costs time: an executor that is called with other weights computes the derived values anew
(`csrc/runtime/execution_plan/fixed_values.h`).

With dynamic sizes, Dynamo passes a Python float as a tensor, and the graph calls `.item()` on it. Operators take a
number there (an `eps`), so it is read before the trace.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch

from staticrt import locks, tuning
from staticrt.executor.state import ExecutorState
from staticrt.frontend.dynamo.dynamo import known_inputs, take_numbers, without_attributes, write_powers
from staticrt.frontend.dynamo.resets import release_at_reset
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.subclasses import Unwrapped
from staticrt.runtime.fast_call import FastPath
from staticrt.runtime.swaps import add_holder


class GraphExecutor(Protocol):
    """What runs a partial graph: an `Executor`."""

    fast: FastPath

    def snapshot(self) -> ExecutorState:
        """What was compiled and what ran eagerly until now."""


class PartialGraph:
    """Runs one graph of Dynamo without gradients.

    Args:
        gm: the graph, on flat arguments; it may be changed.
        inputs: example arguments.
        make_executor: a new executor of the graph's function, for what is known of its arguments.

    Attributes:
        is_released: nothing compiled is left; it runs eagerly.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        inputs: Sequence[Any],
        make_executor: Callable[[Callable[..., Any], KnownInputs], GraphExecutor],
    ) -> None:
        self._make_executor = make_executor
        self._owner = gm
        gm, self._attributes = without_attributes(gm)
        inputs = [*inputs, *self._held()]
        self._known = known = known_inputs(gm, inputs)
        self._key_inputs = tuple(
            i for i in sorted(known.weights) if isinstance(inputs[i], torch.nn.Parameter)
        )
        self._numbers = take_numbers(gm, inputs)
        write_powers(gm)
        self._unwrapped = Unwrapped(gm.forward, inputs) if Unwrapped.serves(inputs, known) else None
        if self._unwrapped is not None:
            self._known = self._unwrapped.known(inputs, known)
        self._function = self._unwrapped or gm.forward
        self._executors: dict[tuple[int, ...], GraphExecutor] = {}
        self._alive: dict[tuple[int, ...], weakref.ref[torch.Tensor]] = {}
        self._other: GraphExecutor | None = None
        self.is_released = False
        self._eager: Callable[..., Any] = torch.compiler.disable(self._function)  # type: ignore[no-untyped-call]
        self._lock = locks.reentrant()
        add_holder(self)
        release_at_reset(self)

    @property
    def executors(self) -> list[GraphExecutor]:
        """Of the sets of weights that it was called with and that are alive."""
        with self._lock:
            return [*self._executors.values(), *([] if self._other is None else [self._other])]

    def _held(self) -> list[Any]:
        return [getattr(self._owner, name) for name in self._attributes]

    def __call__(self, *flat: Any) -> Any:
        if self._attributes:
            flat = (*flat, *self._held())
        key = tuple([id(flat[i]) for i in self._key_inputs])
        if self._numbers:
            values = list(flat)
            for i in self._numbers:
                values[i] = flat[i].item()
            flat = tuple(values)
        executor = self._executors.get(key) or self._executor(key, flat)
        call = self._eager if executor is None else executor.fast.call
        return call(*(flat if self._unwrapped is None else self._unwrapped.take_apart(flat)))

    def _executor(self, key: tuple[int, ...], flat: Sequence[Any]) -> GraphExecutor | None:
        with self._lock:
            if self.is_released:
                return None
            if key in self._executors:
                return self._executors[key]
            if len(self._executors) < tuning.MAX_WEIGHT_SETS:
                executor = self._executors[key] = self._make_executor(self._function, self._known)
                if key:
                    self._alive[key] = weakref.ref(flat[self._key_inputs[0]], self._forget(key))
                return executor
            if self._other is None:
                self._other = self._make_executor(
                    self._function, dataclasses.replace(self._known, weights=frozenset())
                )
            return self._other

    def let_go(self, tensors: Collection[int]) -> None:
        """See `swaps.Holder`."""
        with self._lock:
            for key in [key for key in self._alive if not set(key).isdisjoint(tensors)]:
                del self._alive[key]
                self._executors.pop(key, None)

    def release(self) -> None:
        """Drop what was compiled. Calls run eagerly from now on."""
        with self._lock:
            self.is_released = True
            self._alive.clear()
            self._executors.clear()
            self._other = None

    def _forget(self, key: tuple[int, ...]) -> Callable[[object], None]:
        """A callback that drops the executor of weights that are freed."""
        executors = self._executors

        def forget(_gone: object) -> None:
            executors.pop(key, None)

        return forget
