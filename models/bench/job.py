"""Jobs for workers and their results; both are JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PAIR = "pair"  # measure one model with one peer
FACTS = "facts"  # count one model's operations and bytes
LIMITS = "limits"  # measure the machine's own

# status of a row
OK = "ok"
WRONG = "wrong"  # answered, but not what eager answers
OVERWRITTEN = "overwritten"  # a later call changed an answer the caller still held
WROTE_INPUT = "wrote input"  # changed an argument that eager does not change
FAILED = "failed"  # raised an exception
CRASHED = "crashed"  # the process ended
TIMEOUT = "timeout"
ABSENT = "absent"  # not installed

Result = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How long and how to measure.

    Attributes:
        threads: CPUs a worker may use while it is timed.
        seconds: length of the alternating rounds of one pair.
        block_seconds: length of one block of calls.
        min_rounds: fewest rounds, however long a call takes.
        timeout: seconds a worker may take in all.
        seed: seed of weights and inputs.
        options: keywords of `staticrt.compile`, for staticrt's own rows.
    """

    threads: int
    seconds: float
    block_seconds: float
    min_rounds: int
    timeout: float
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One task for one process; `model` and `peer` as far as the kind needs them.

    `cpus`: those the work is timed on; any if empty.
    """

    kind: str
    setting: Setting
    model: str = ""
    peer: str = ""
    cpus: tuple[int, ...] = ()
