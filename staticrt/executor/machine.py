"""One call as a state machine: `advance` holds every transition.

A call is in one stage at a time. The executor acts (`_ACTIONS` in executor.py), which has one outcome, and `advance` says which
stage follows and how the route of the call's key changes. Calls that the C++ fast path serves never come here, nor do
those that need gradients (joint traces serve them, or Dynamo splits them) or that no trace takes
(an active dispatch mode, a tensor subclass: they run eagerly).

            ┌──────────────────────── OTHER_DECISION ────────────────────────┐
            ▼                                                                │
    ──▶  FIND ── FOUND ───────────────────────────────────────────────▶  RUN ── RETURNED ──▶ DONE
            │ NOT_FOUND, by the route of the key:              ▲             │ LEFT_TO_EAGER (an argument that is
            │                                  FOUND, TRACED   │             │ written shares memory; this call only)
            ├─ WHOLE ──▶  TRACE ───────────────────────────────┘             │
            │             │ ▲                                                │
            │             │ └─ NEEDS_OTHER_SIZES (our symbols, ShapeEnv's, 0 and 1 constant, all constant)
            │             ├─ ARGUMENTS_CHANGED ──▶ FLATTEN: the call starts again, flattened deeper
            │             ├─ MODEL_CHANGED (twice at most), route := RETRY ──────────┐
            │             ├─ RAISED, route := EAGER_FIRST ───────────────────────────┤
            │             ├─ ONLY_EAGER, route := EAGER ─────────────────────────────┤
            │             ├─ LEFT_TO_EAGER (max_traces is reached; this call only) ──┤
            │             │                                                          │
            │             ├─ NEEDS_BACKWARD, route := TRAIN ──▶ TRAIN                │
            │             └─ CANNOT_TRACE, or a fifth branch, route := SPLIT         │
            │                  ▼                                                     ▼
            ├─ SPLIT ──▶  SPLIT ── NOT_COMPILED, LEFT_TO_EAGER ───────────────▶  EAGER
            │               ├─ STATE_CHANGED, route := WHOLE ──▶ TRACE; ONLY_EAGER if it does so often
            │               └─ RETURNED (a cost trial may have preferred eager) ─▶ DONE
            ├─ TRAIN ──▶  TRAIN ── RETURNED ──▶ DONE: as calls whose arguments need gradients
            │               └─ NEEDS_NO_GRADIENT, route TRAIN becomes WHOLE ──▶ FIND, and TRACE without a backward
            └─ RETRY, EAGER_FIRST, EAGER ─────────────────────────────────────▶  EAGER

    EAGER ── RETURNED ──▶ DONE: this call only
          ── EAGER_RETURNED ──▶ DONE; route RETRY becomes WHOLE, EAGER_FIRST becomes SPLIT
          ── REPLACED ──▶ DONE; route := EAGER: eager answered where graph splits did not, or where traces raised
          ── EAGER_RAISED ──▶ raises to the caller; route := WHOLE: the call was wrong, not the model
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from staticrt.executor.call_state import CallState, Route
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.runtime.cached_trace import CachedTrace
from staticrt.runtime.call import Call


class Stage(enum.Enum):
    """What happens next to a call."""

    FIND = "look for a kept trace that accepts it"
    TRACE = "trace the function for it, with one way to represent sizes"
    RUN = "run a trace"
    SPLIT = "run it by graph splits"
    TRAIN = "run it with its backward"
    EAGER = "run it eagerly"
    FLATTEN = "flatten its arguments again and begin anew"
    DONE = "return its result"


class Outcome(enum.Enum):
    """How a stage ended."""

    FOUND = "a kept trace accepts the call"
    NOT_FOUND = "no kept trace accepts it"
    TRACED = "a trace was made"
    NEEDS_OTHER_SIZES = "the trace failed, another way to represent sizes may serve"
    ARGUMENTS_CHANGED = "the model changes attributes of an argument: it has to be flattened into them"
    MODEL_CHANGED = "the model changed its own state, as many do in their first call only"
    NEEDS_BACKWARD = "the result needs gradients of tensors that are no arguments"
    NEEDS_NO_GRADIENT = "a trace with its backward told that no result needs a gradient"
    CANNOT_TRACE = "the model does what no graph replays"
    RAISED = "the model raised while it was traced"
    ONLY_EAGER = "it cannot be traced, and must not be split"
    OTHER_DECISION = "data decided another branch than in the trace; nothing was written"
    STATE_CHANGED = "what Dynamo may not guard was changed since the last call"
    NOT_COMPILED = "Dynamo gave up, or a split raised and nothing was written"
    LEFT_TO_EAGER = "this call must run eagerly"
    RETURNED = "there is a result"
    EAGER_RETURNED = "eager gave the result for a call that could not be traced"
    REPLACED = "eager gave the result where graph splits, or new traces again and again, did not"
    EAGER_RAISED = "eager raised too"


@dataclasses.dataclass(eq=False)
class Progress:
    """How far a call has come.

    Args:
        call: the call.
        state: the state of its key.
        limited: no trace is made beyond the option `max_traces`.
        gradients: whether results may need gradients, as far as is known before the trace.
        tried: traces in which data takes another branch.
        request: the trace that is to be made, once there is one.
        trace: the one that runs.
        fresh: it was made for this call.
        dropped: its first run raised.
        reason: why this call alone runs eagerly; "": as its key's failure says.
        not_compiled: graph splits gave no result.
        result: of the call, once it has one.
    """

    call: Call
    state: CallState
    limited: bool = True
    gradients: bool = True
    tried: list[CachedTrace] = dataclasses.field(default_factory=list)
    request: TraceRequest | None = None
    trace: CachedTrace | None = None
    fresh: bool = False
    dropped: bool = False
    reason: str = ""
    not_compiled: bool = False
    result: Any = None


_FIRST_STAGE = {
    Route.WHOLE: Stage.TRACE,
    Route.SPLIT: Stage.SPLIT,
    Route.TRAIN: Stage.TRAIN,
    Route.RETRY: Stage.EAGER,
    Route.EAGER_FIRST: Stage.EAGER,
    Route.EAGER: Stage.EAGER,
}
_AFTER_EAGER = {Route.RETRY: Route.WHOLE, Route.EAGER_FIRST: Route.SPLIT}


def advance(outcome: Outcome, state: CallState) -> Stage:
    """The stage that follows an outcome. The only place where a route changes."""
    match outcome:
        case Outcome.FOUND | Outcome.TRACED:
            return Stage.RUN
        case Outcome.RETURNED:
            return Stage.DONE
        case Outcome.NOT_FOUND:
            return _FIRST_STAGE[state.route]
        case Outcome.OTHER_DECISION:
            return Stage.FIND
        case Outcome.LEFT_TO_EAGER | Outcome.NOT_COMPILED:
            return Stage.EAGER
        case Outcome.NEEDS_OTHER_SIZES:
            return Stage.TRACE
        case Outcome.ARGUMENTS_CHANGED:
            return Stage.FLATTEN
        case Outcome.STATE_CHANGED:
            state.route = Route.WHOLE
            return Stage.TRACE
        case Outcome.MODEL_CHANGED:
            state.changes += 1
            state.route = Route.RETRY
            return Stage.EAGER
        case Outcome.NEEDS_BACKWARD:
            state.route = Route.TRAIN
            return Stage.TRAIN
        case Outcome.NEEDS_NO_GRADIENT:
            state.route = Route.WHOLE if state.route is Route.TRAIN else state.route
            return Stage.FIND
        case Outcome.CANNOT_TRACE:
            state.route = Route.SPLIT
            return Stage.SPLIT
        case Outcome.RAISED:
            state.route = Route.EAGER_FIRST
            return Stage.EAGER
        case Outcome.ONLY_EAGER:
            state.route = Route.EAGER
            return Stage.EAGER
        case Outcome.EAGER_RETURNED:
            state.route = _AFTER_EAGER.get(state.route, state.route)
        case Outcome.REPLACED:
            state.route = Route.EAGER
        case Outcome.EAGER_RAISED:
            state.route = Route.WHOLE
    return Stage.DONE
