"""Generations (steps): when a path may end, so that replays may overwrite outputs of earlier calls.

A generation is one outermost call and its backward. Its number is the count of outermost calls; once the user has marked
steps, it is the count of marks, which is negative and so differs from any count of calls.
"""

from __future__ import annotations

import threading
import weakref

from staticrt.graphs.overrides import decisions
from staticrt.torch_private import marked_steps


class _Marks:
    count = 0
    forgotten = 0  # of torch's own


def mark_step_begin() -> None:
    """Begin a new step: outputs of earlier steps need not stay at their addresses.

    Applies to all contexts of the process. From the first mark on, only marks separate steps.
    `torch.compiler.cudagraph_mark_step_begin` marks steps as well.
    """
    _Marks.count -= 1


def reset_marks() -> None:
    """Drop all marks: outermost calls separate steps again."""
    _Marks.count = 0
    _Marks.forgotten = marked_steps()


def _marks() -> int:
    return _Marks.count + marked_steps() - _Marks.forgotten


class Pending:
    """A backward that may still need what its forward saved. Its autograd node keeps this object alive.

    Args:
        captured: whether overrides allowed its capture when its forward ran.
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
        """The number of the current generation."""
        return _marks() or self._calls

    @property
    def pending(self) -> bool:
        """Whether a backward of this step may still run."""
        return len(self._tokens) > 0 if self._exact else self._forwards_pending

    def may_start(self) -> bool:
        """Whether a new generation may begin, so that replays may overwrite outputs of the last one."""
        return _marks() != 0 or not self.pending

    def new_pending(self) -> Pending:
        """Register the backward of a forward that ran. It counts as pending while the result is alive."""
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
        """Begin an outer call; calls inside belong to its generation."""
        depth = getattr(self._depth, "value", 0)
        if depth == 0:
            self._calls += 1
        self._depth.value = depth + 1
        return self

    def __exit__(self, *_error: object) -> None:
        self._depth.value -= 1
