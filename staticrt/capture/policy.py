"""How a graph context treats outputs, mismatches and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from staticrt.errors import OptionError

LIVE_OUTPUTS = ("clone", "error", "reuse")


@dataclasses.dataclass(frozen=True)
class Policy:
    """Options of a `GraphContext`.

    Args:
        live_outputs: what happens, when a new step begins, to outputs of the last one that are still held.
            "clone": they move to memory of their own and stay as they are. "error": every access to them raises.
            "reuse": upstream's rule; a replay overwrites them, and only what was captured or warmed up is poisoned.
        warmup: run a function once before capturing it, on devices where capturing does not execute.
        max_graphs: captures kept: root graphs in all, and siblings below any node; the least recently used go.
        recapture_limit: unexpected mismatches on one edge after which its calls run plain.
        retry_plain: let an edge that ran into the limit try again, after 2, 4, 8, … times the limit of calls; else
            it stays plain.
        unstable_after: mismatches of one input after which it is copied in every call; None: never.
        exact_pending: a step lasts until every backward it needs has run or its autograd graph is gone; else, as
            upstream, until one backward has run.
        mutation: capture functions that write inputs at fixed places; else they run plain.
        capture_sizes: integers (or tuples of them) worth capturing; others run plain. None: all.
        captures: (name of a function, "inference", "forward" or "backward") -> whether it is captured at all; asked
            once per function and kind of call. None: all.
        max_sizes_unwarned: warn once when a function has captured more distinct sizes.
        min_kernels: functions whose graph launches fewer kernels run plain.
        check_pool: compare the pool's live blocks with what is known at every warmup, capture and restore.
        or_error: raise a CaptureError that says why, instead of running a call uncaptured. What an override, `captures`,
            `capture_sizes` or `min_kernels` leaves out still runs plain.
        leaks: a function that keeps memory of a capture to itself: "plain" runs it plain from then on, "raise" raises.
    """

    live_outputs: str = "clone"
    warmup: bool = True
    max_graphs: int = 16
    recapture_limit: int = 128
    retry_plain: bool = True
    unstable_after: int | None = 3
    exact_pending: bool = True
    mutation: bool = True
    capture_sizes: Collection[Any] | None = None
    captures: Callable[[str, str], bool] | None = None
    max_sizes_unwarned: int = 8
    min_kernels: int = 1
    check_pool: bool = True
    or_error: bool = False
    leaks: str = "plain"

    def __post_init__(self) -> None:
        if self.live_outputs not in LIVE_OUTPUTS:
            raise OptionError(
                f"live_outputs is one of {', '.join(map(repr, LIVE_OUTPUTS))}, got {self.live_outputs!r}"
            )
        if self.leaks not in ("plain", "raise"):
            raise OptionError(f"leaks is 'plain' or 'raise', got {self.leaks!r}")
        if self.max_graphs < 1:
            raise OptionError(f"max_graphs is at least 1, got {self.max_graphs}")

    @property
    def caches_outputs(self) -> bool:
        """Whether a replay returns the tensor objects of the last one (upstream), or new ones."""
        return self.live_outputs == "reuse"

    @classmethod
    def upstream(cls, **changes: Any) -> Policy:
        """The rules of CUDA graph trees in torch 2.13."""
        values: dict[str, Any] = {
            "live_outputs": "reuse",
            "retry_plain": False,
            "unstable_after": None,
            "exact_pending": False,
            "min_kernels": 0,
            "leaks": "raise",
        }
        return cls(**{**values, **changes})


KeyFunction = Callable[[tuple[int, ...]], Any]
