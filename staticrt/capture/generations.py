"""Steps: when outputs of earlier calls need no longer be respected in place.

A generation is one outermost call and its backward. Its number is the count of marks once the user has marked steps
(negative, so that it never equals a count of calls), else the count of outermost calls.
"""

from __future__ import annotations

import threading
import weakref
from types import TracebackType

from staticrt.capture.overrides import decisions


class _Marks:
    count = 0


def mark_step_begin() -> None:
    """Say that a new step begins: outputs of earlier steps need not stay where they are.

    Applies to every context of the process. From the first mark on, marks alone separate steps.
    """
    _Marks.count -= 1


def reset_marks() -> None:
    """Forget all marks: outermost calls separate steps again."""
    _Marks.count = 0


class Pending:
    """A backward that may still need what its forward saved. Whoever will run it keeps this object.

    Args:
        captured: whether it is to be captured, as overrides said where its forward ran.
    """

    __slots__ = ("__weakref__", "captured")

    def __init__(self, captured: bool = True) -> None:
        self.captured = captured


class Generations:
    """Steps of one context.

    Args:
        exact: a step lasts until every `Pending` is gone; else until one backward has run.
    """

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._calls = 0
        self._depth = threading.local()
        self._tokens: weakref.WeakSet[Pending] = weakref.WeakSet()
        self._forwards_pending = False

    def number(self) -> int:
        """The step now."""
        return _Marks.count or self._calls

    @property
    def pending(self) -> bool:
        """Whether a backward of this step may still run."""
        return len(self._tokens) > 0 if self._exact else self._forwards_pending

    def may_start(self) -> bool:
        """Whether a new step may leave the outputs of the last behind."""
        return _Marks.count != 0 or not self.pending

    def new_pending(self) -> Pending:
        """A forward ran; its backward will need its outputs while the result lives."""
        token = Pending(decisions()[1])
        self._tokens.add(token)
        return token

    def forward_ran(self) -> None:
        """A forward returned."""
        self._forwards_pending = True

    def backward_ran(self) -> None:
        """A backward ran, captured or not."""
        self._forwards_pending = False

    def __enter__(self) -> Generations:
        """One call of the user's; calls inside belong to it."""
        depth = getattr(self._depth, "value", 0)
        if depth == 0:
            self._calls += 1
        self._depth.value = depth + 1
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth.value -= 1
