"""What is kept for each call key: its traces, and how its calls run where no trace serves them."""

from __future__ import annotations

import dataclasses
import enum
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from staticrt import tuning
from staticrt.executor.cost_trials import CostTrials
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.frontend.guards.watched_state import WatchedState
from staticrt.runtime.cached_trace import CachedTrace, Failure
from staticrt.runtime.call import Call
from staticrt.runtime.call_key import Identity, weak_reference


class Route(enum.Enum):
    """How calls of one key run when no kept trace accepts them."""

    WHOLE = "traced whole"
    RETRY = "eagerly once, since the model changed its own state; then traced whole again"
    EAGER_FIRST = (
        "eagerly once, since the trace raised: if eager raises too, the call was wrong; else by graph splits"
    )
    SPLIT = "by graph splits"
    TRAIN = "traced with their backward: the result needs gradients of tensors that are no arguments"
    EAGER = "eagerly"


STATE_CHANGES_OFTEN = Failure(
    "state that Dynamo does not guard changes again and again", "", True, even_in_parts=True
)


@dataclasses.dataclass(eq=False)
class CallState:
    """The state of one call key.

    Args:
        route: how calls run when no trace accepts them.
        traces: those kept, in the order in which they are looked at.
        failure: why the last trace failed.
        changes: traces that failed because the model changed its own state.
        fills: calls in which the model changed its own state although it has traces: the failure, and a guard of the state
            before the call.
        trials: timings of graph splits against eager, while the route is SPLIT.
        watched: state that Dynamo may not guard, while the route is SPLIT or after a joint trace failed.
        interventions: how often that state was changed between two calls.
        refused: sizes for which eager raised: such calls are not traced again until one succeeds in eager.
        constant_sizes: tracing with symbols for sizes takes too long: each size has a trace of its own.
        follows_branches: joint traces follow the branches that data decides. False: there are too many, or data decides
            whether a size is broadcast, which a trace assumes and checks.
    """

    route: Route = Route.WHOLE
    traces: tuple[CachedTrace, ...] = ()
    failure: Failure | None = None
    changes: int = 0
    fills: list[tuple[Failure, StateGuard]] = dataclasses.field(default_factory=list)
    trials: CostTrials | None = None
    watched: WatchedState | None = None
    interventions: int = 0
    refused: set[tuple[Any, ...]] = dataclasses.field(default_factory=set)
    constant_sizes: bool = False
    follows_branches: bool = True

    def find(self, call: Call, tried: Sequence[CachedTrace] = ()) -> CachedTrace | None:
        """The first trace that accepts a call, other than those in `tried`."""
        for trace in self.traces:
            if trace not in tried and trace.accepts(call.leaves, call.key):
                return trace
        return None

    def take_remade(self, call: Call, tried: Sequence[CachedTrace]) -> CachedTrace | None:
        """The first trace that accepts a call after it reads tensors that the model has replaced, other than those in `tried`."""
        for trace in self.traces:
            if trace not in tried and trace.take_remade(call.leaves, call.key):
                return trace
        return None

    def will_change(self) -> Failure | None:
        """The failure of an earlier call in the same state, in which the model changed itself; None: none is known."""
        known = (failure for failure, state in self.fills if self.traces and state.holds())
        return next(known, None)

    def refuse(self, sizes: tuple[Any, ...]) -> None:
        """Remember a call for which eager raised."""
        if len(self.refused) >= tuning.MAX_REFUSED_SIZES:
            self.refused.clear()
        self.refused.add(sizes)

    def state_changed(self, limit: int) -> bool:
        """Count a change of the watched state and stop watching it; returns whether there were `limit` changes."""
        self.watched = None
        self.interventions += 1
        return self.interventions >= limit

    def move_to_front(self, trace: CachedTrace) -> None:
        """Try a trace first from now on: data is likely to take the same branch in the next call."""
        if trace in self.traces:
            self.traces = (trace, *(other for other in self.traces if other is not trace))

    def drop_decided(self) -> tuple[CachedTrace, ...]:
        """Forget the traces with branches that data decides; returns them."""
        dropped = tuple(trace for trace in self.traces if trace.traced.decided)
        self.traces = tuple(trace for trace in self.traces if not trace.traced.decided)
        return dropped


class CallStates:
    """The states of an executor's call keys. Each is kept as long as the objects that its key names are alive.

    Args:
        forgotten: called with each state that is dropped.
    """

    def __init__(self, forgotten: Callable[[CallState], None]) -> None:
        self._forgotten = forgotten
        self._states: dict[tuple[Any, ...], CallState] = {}
        self._watched: dict[tuple[Any, ...], list[weakref.ref[Any]]] = {}

    def get(self, key: tuple[Any, ...]) -> CallState | None:
        """The state of a key, if there is one."""
        return self._states.get(key)

    def keep(self, key: tuple[Any, ...], state: CallState) -> None:
        """Remember a key's state."""
        if key not in self._states:
            gone = partial(_gone, weakref.ref(self), key)
            leaves = [part.value for part in key if isinstance(part, Identity)]
            references = (weak_reference(leaf, gone) for leaf in leaves)
            self._watched[key] = [ref for ref in references if ref is not None]
        self._states[key] = state

    def items(self) -> Iterator[tuple[tuple[Any, ...], CallState]]:
        """Each key with its state."""
        return iter(list(self._states.items()))

    def failures(self) -> tuple[Failure, ...]:
        """Why keys have no further trace, one for each where there is a reason."""
        return tuple(state.failure for _key, state in self.items() if state.failure is not None)

    def without_stale(self, traces: Sequence[CachedTrace]) -> Sequence[CachedTrace]:
        """Forget those of `traces` whose guards keep objects alive that the model has dropped; returns the others.

        A new trace would find such objects by weak references, so nothing else may hold what is forgotten.
        """
        kept = [trace for trace in traces if not trace.state.is_in_the_way()]
        if len(kept) == len(traces):
            return traces
        for _key, state in self.items():
            state.traces = tuple(trace for trace in state.traces if trace in kept)
        return kept

    def to_give_up(self, state: CallState, traces: Iterable[CachedTrace]) -> CachedTrace | None:
        """Which of `traces`, all in the order they were made, gives its place to a new one of `state` at the limit of traces.

        It is the oldest of the key that has most, if that has at least two more than `state`: a key whose state changes
        in every call does not keep others from being traced, and the exchanges come to an end.
        """
        most = max((other.traces for _key, other in self.items()), key=len, default=())
        return next((t for t in traces if t in most), None) if len(most) >= len(state.traces) + 2 else None

    def give_up(self, given_up: CachedTrace | None, traces: Iterable[CachedTrace]) -> Iterator[CachedTrace]:
        """`traces` without one that is given up."""
        for _key, state in self.items():
            state.traces = tuple(trace for trace in state.traces if trace is not given_up)
        return (trace for trace in traces if trace is not given_up)

    def forget(self, key: tuple[Any, ...]) -> None:
        """Drop a key's state. Python calls this while it frees objects, so nothing here waits for a lock."""
        self._watched.pop(key, None)
        state = self._states.pop(key, None)
        if state is not None:
            self._forgotten(state)


def _gone(states: weakref.ref[CallStates], key: tuple[Any, ...], _leaf: weakref.ref[Any]) -> None:
    kept = states()
    if kept is not None:
        kept.forget(key)
