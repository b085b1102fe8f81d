"""Calls that a joint trace does not serve: how they are handed back to the executor, and what a failed trace says."""

from __future__ import annotations

from collections.abc import Callable

from staticrt.frontend.reasons import CannotTrace, ModelChanges, NeedsNoGradient
from staticrt.runtime.cached_trace import Failure
from staticrt.runtime.call import Call

# Calls of a reentrant checkpoint: Dynamo takes seconds to split around them.
_RANDOM_STATE = ("rng_state()", "fork_rng()")
# Whether results need gradients follows from state that changes again and again.
NEEDS_CHANGE_OFTEN = Failure(
    "whether a result needs a gradient changes again and again", "", True, even_in_parts=True
)


class LeftToEager(Exception):
    """This call must run eagerly: Dynamo would differ from eager, or the call may be wrong. Nothing has run.

    Args:
        reason, where: why, as in `Failure`.
        answered: the caller calls it after the eager call has returned.
        lasts: every call of its kind runs eagerly for this reason.
    """

    def __init__(self, reason: str, where: str, answered: Callable[[], object], lasts: bool = False) -> None:
        super().__init__(reason)
        self.lasts = lasts
        self.reason = reason
        self.where = where
        self.answered = answered


class NeedsNone(Exception):
    """No result of this call needs a gradient: it runs as calls without gradients do. Nothing has run.

    Args:
        call: the call.
        is_new: a trace of this call has just shown it; else an earlier call's trace did, possibly under other guards.
        ask_again: the caller calls it if no trace without a backward serves the call.
    """

    def __init__(self, call: Call, is_new: bool, ask_again: Callable[[], object]) -> None:
        super().__init__("no result needs a gradient")
        self.call = call
        self.is_new = is_new
        self.ask_again = ask_again


def failure_with_backward(error: Exception) -> Failure:
    """What the failure of a trace says of later calls of its key."""
    from staticrt.frontend.tracing.trace import failure

    reason, where = failure(error)
    # Eager shows whether a call that raises is wrong, and state that it creates exists in the next call.
    eager_first = not isinstance(error, CannotTrace) or isinstance(error, ModelChanges)
    # State that the first call creates exists in the next one, a warning is issued once, and a correct call may
    # follow a wrong one.
    transient = eager_first or "changes" in reason
    return Failure(
        reason,
        where,
        impossible=not transient,
        even_in_parts=isinstance(error, CannotTrace)
        and (error.even_in_parts or any(text in reason for text in _RANDOM_STATE)),
        eager_first=eager_first,
        needs_none=isinstance(error, NeedsNoGradient),
    )
