"""Whether a function that Dynamo cuts gains by running in pieces: measured on calls that are made anyway.

Each call of a cut function pays for Dynamo's guards and for every piece's entry, a few hundred microseconds. Pieces of
some small operators do not give that back. So after a warm-up a few calls of the same sizes run in pieces and a few
eagerly, and the faster way stays. Both give eager's result, so a wrong guess costs time only.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Literal

import torch

Way = Literal["pieces", "eager"]

_WARM = 3  # calls in pieces before the first that counts: Dynamo, captures, preparation
_PIECES, _EAGER = 5, 3  # calls that count, of which the fastest is compared
_MARGIN = 1.3  # how much faster eager has to be
_IDLE = 3  # calls in a row in which Dynamo compiled nothing
_MAX_SIZES = 16  # signatures measured at most; others run in pieces


@dataclasses.dataclass
class _Trial:
    warm: int = _WARM
    pieces: list[int] = dataclasses.field(default_factory=list)  # ns
    eager: list[int] = dataclasses.field(default_factory=list)
    verdict: Way | None = None


class Trials:
    """The trials of one kind of call.

    Args:
        measured: whether time may decide; else calls run in pieces until Dynamo has nothing to compile.
    """

    def __init__(self, measured: bool) -> None:
        self._measured = measured
        self._trials: dict[tuple[Any, ...], _Trial] = {}
        self._idle = 0

    def way(self, leaves: Sequence[Any]) -> tuple[Way, _Trial | None]:
        """How a call with these flat arguments runs, and the trial that its time belongs to."""
        if self._idle >= _IDLE:
            return "eager", None
        if not self._measured:
            return "pieces", None
        sizes = tuple(leaf.shape for leaf in leaves if isinstance(leaf, torch.Tensor))
        trial = self._trials.get(sizes)
        if trial is None:
            if len(self._trials) >= _MAX_SIZES:
                return "pieces", None
            trial = self._trials[sizes] = _Trial()
        if trial.verdict is not None:
            return trial.verdict, None
        return "pieces" if len(trial.pieces) < _PIECES else "eager", trial

    def ran(self, way: Way, trial: _Trial | None, begin_ns: int, compiled: bool) -> None:
        """Note that a call ran, and whether any of it ran compiled."""
        took = time.perf_counter_ns() - begin_ns
        if way == "pieces":
            self._idle = 0 if compiled else self._idle + 1
        if trial is None:
            return
        if way == "eager":
            trial.eager.append(took)
        elif trial.warm > 0:
            trial.warm -= 1
        else:
            trial.pieces.append(took)
        if len(trial.eager) >= _EAGER:
            trial.verdict = "eager" if min(trial.eager) * _MARGIN < min(trial.pieces) else "pieces"

    def reason(self, trial: _Trial | None) -> str:
        """Why a call runs eagerly, for `explain()`; "" where Dynamo finds nothing to compile."""
        if trial is not None:
            return "timed, to tell whether running it in pieces pays"
        return "" if self._idle >= _IDLE else "cut into pieces it takes longer"
