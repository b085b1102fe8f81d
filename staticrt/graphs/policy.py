"""Options of a graph context: live outputs, mismatches, limits."""

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
        live_outputs: what happens to outputs of the last step that are still held when a new step begins.
            "clone": they move to memory of their own and keep their values. "error": every access to them raises.
            "reuse": as in CUDA graph trees, a replay overwrites them; outputs of warmups and captures are poisoned.
        warmup: run a function once before capturing it, on devices where capturing does not execute.
        max_graphs: the most captures kept as roots, and as children of any node. The least recently used are evicted.
        recapture_limit: unexpected mismatches of one function after one node, above which its calls run uncaptured there.
        retry_plain: capture again after 2, 4, 8, … times the limit of such calls; else they stay uncaptured.
        unstable_after: an input that moved this often is copied in every call; None: never.
        exact_pending: a step lasts until each of its backwards has run or its autograd graph is gone. Else it lasts until one
            backward has run, as in CUDA graph trees.
        mutation: capture functions that write inputs at fixed addresses; else they run uncaptured.
        capture_sizes: integers (or tuples of them) to capture; calls with others run uncaptured. None: all.
        captures: called with a function's name and "inference", "forward" or "backward", once per function and kind of call.
            Returns whether to capture it. None: all.
        max_sizes_unwarned: a function that is captured for more distinct sizes causes one warning.
        min_kernels: functions whose graph launches fewer kernels run uncaptured.
        check_pool: compare the pool's live blocks with the live outputs at every warmup, capture and restore.
        or_error: raise a CaptureError with the reason instead of running a call uncaptured. Calls that an override, `captures`,
            `capture_sizes` or `min_kernels` excludes still run uncaptured.
        leaks: for a function that keeps memory of a capture without returning it: "plain" runs it uncaptured from then
            on, "raise" raises.
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
        """Whether replays return the same tensor objects each time, as CUDA graph trees do, or new ones."""
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
