"""Cost trials: whether a function with graph breaks runs faster split or eagerly, timed on the user's own calls.

Each call of a split function pays for Dynamo's guards and for the entry of every partial graph, a few hundred
microseconds. Partial graphs of a few small operators do not save that much. So after a warm-up a few calls of the same
sizes run split and a few eagerly, and the faster way is kept. Both give eager's result, so a wrong choice only costs time.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from staticrt import tuning

Way = Literal["split", "eager"]


@dataclasses.dataclass
class _CostTrial:
    warm: int = tuning.TRIAL_WARM_CALLS
    split: list[int] = dataclasses.field(default_factory=list)  # ns
    eager: list[int] = dataclasses.field(default_factory=list)
    verdict: Way | None = None


class CostTrials:
    """The trials of one call key.

    Args:
        measured: whether timings decide; else calls run split until Dynamo has nothing to compile.
    """

    def __init__(self, measured: bool) -> None:
        self._measured = measured
        self._trials: dict[tuple[Any, ...], _CostTrial] = {}
        self._idle = 0

    def way(self, leaves: Sequence[Any]) -> tuple[Way, _CostTrial | None]:
        """How a call with these flat arguments runs, and the trial that its time belongs to."""
        if self._idle >= tuning.TRIAL_IDLE_CALLS:
            return "eager", None
        if not self._measured:
            return "split", None
        sizes = tuple(leaf.shape for leaf in leaves if isinstance(leaf, torch.Tensor))
        trial = self._trials.get(sizes)
        if trial is None:
            if len(self._trials) >= tuning.TRIAL_MAX_SIZES:
                return "split", None
            trial = self._trials[sizes] = _CostTrial()
        if trial.verdict is not None:
            return trial.verdict, None
        return "split" if len(trial.split) < tuning.TRIAL_SPLIT_CALLS else "eager", trial

    def ran(self, way: Way, trial: _CostTrial | None, begin_ns: int, compiled: bool) -> None:
        """Note that a call ran, and whether any of it ran compiled."""
        took = time.perf_counter_ns() - begin_ns
        if way == "split":
            self._idle = 0 if compiled else self._idle + 1
        if trial is None:
            return
        if way == "eager":
            trial.eager.append(took)
        elif trial.warm > 0:
            trial.warm -= 1
        else:
            trial.split.append(took)
        if len(trial.eager) >= tuning.TRIAL_EAGER_CALLS:
            trial.verdict = "eager" if min(trial.eager) * tuning.TRIAL_MARGIN < min(trial.split) else "split"

    def run(
        self, leaves: Sequence[Any], split: Callable[[], tuple[Any, bool]], eager: Callable[[str, bool], Any]
    ) -> tuple[Any, bool]:
        """Run a call one way, and note its time.

        Args:
            leaves: flat arguments.
            split: runs the call split; returns its result, and whether any of it ran compiled.
            eager: runs the call eagerly; called with the reason, and with whether such calls run eagerly from now on.

        Returns:
            The result, and False where Dynamo found nothing to compile.
        """
        way, trial = self.way(leaves)
        begin = time.perf_counter_ns()
        if way == "eager":
            result, compiled = eager(self.reason(trial), trial is None), True
        else:
            result, compiled = split()
        self.ran(way, trial, begin, compiled)
        return result, compiled

    def reason(self, trial: _CostTrial | None) -> str:
        """Why a call runs eagerly, for `explain()`; "" where Dynamo finds nothing to compile."""
        if trial is not None:
            return "timed, to find out whether running it split by graph breaks is faster"
        return "" if self._idle >= tuning.TRIAL_IDLE_CALLS else "split by graph breaks it takes longer"


class StepTrials(CostTrials):
    """Trials of calls that need gradients: a call takes until the next one begins, so that its backward counts."""

    _last: tuple[Way, _CostTrial | None, int, bool] | None = None

    def way(self, leaves: Sequence[Any]) -> tuple[Way, _CostTrial | None]:
        """As of `CostTrials`."""
        last, self._last = self._last, None
        if last is not None:
            super().ran(*last)
        return super().way(leaves)

    def ran(self, way: Way, trial: _CostTrial | None, begin_ns: int, compiled: bool) -> None:
        """As of `CostTrials`."""
        self._last = way, trial, begin_ns, compiled
