"""Counts how often a function that follows a node found no capture to replay, and limits its recaptures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from staticrt import tuning
from staticrt.graphs.checks import Check, Mismatch
from staticrt.graphs.functions import Function
from staticrt.graphs.policy import Policy
from staticrt.graphs.tree import PathNode

Key = tuple[int | None, Function]


@dataclasses.dataclass
class RecaptureCount:
    """Mismatches of one function after one node, or at the root.

    Args:
        mismatches: unexpected mismatches since the last try to capture.
        plain_calls: how many of the next calls run uncaptured.
        outlived: calls that ran uncaptured because an output would have outlived inputs that it died with at the capture.
        retries: how often the limit was reached.
        reason: why the last call did not match.
    """

    mismatches: int = 0
    plain_calls: int = 0
    outlived: int = 0
    retries: int = 0
    reason: str = ""


class Recaptures:
    """Mismatch counts of a tree, by parent node and function."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._counts: dict[Key, RecaptureCount] = {}

    def get(self, node: PathNode | None, function: Function) -> RecaptureCount | None:
        """The counts of a function after a node; None if it never mismatched there."""
        return self._counts.get(_key(node, function))

    def count_mismatch(self, node: PathNode | None, function: Function, mismatch: Mismatch) -> bool:
        """Count a mismatch that leads to another capture. Returns whether it exceeds the limit.

        A static input that moved is expected and does not count.
        """
        count = self._counts.setdefault(_key(node, function), RecaptureCount())
        count.reason = mismatch.text()
        if mismatch.check is Check.STATIC:
            return False
        count.mismatches += 1
        if count.mismatches <= self._policy.recapture_limit:
            return False
        count.retries += 1
        count.plain_calls = max(1, self._policy.recapture_limit) * 2**count.retries
        return True

    def outlived(self, node: PathNode | None, function: Function, mismatch: Mismatch) -> bool:
        """Whether a call runs uncaptured because an output outlives inputs that it died with at the capture.

        The first two such calls do. The next one is captured, because the new liveness pattern seems to last.
        """
        if mismatch.check is not Check.DEAD_AFTER:
            return False
        count = self._counts.setdefault(_key(node, function), RecaptureCount())
        count.reason = mismatch.text()
        count.outlived += 1
        return count.outlived <= tuning.MAX_OUTLIVED_RECORDINGS

    def limit_reached(self, node: PathNode | None, function: Function) -> str | None:
        """Why the next call runs uncaptured; None if it does not. With `retry_plain` each call counts towards the next try."""
        count = self._counts.get(_key(node, function))
        if count is None or count.plain_calls == 0:
            return None
        if self._policy.retry_plain:
            count.plain_calls -= 1
            if count.plain_calls == 0:
                count.mismatches = -1  # the next mismatch captures, whatever the limit
        return f"more than {self._policy.recapture_limit} unexpected mismatches, the last: {count.reason}"

    def forget_nodes(self, nodes: Iterable[PathNode]) -> None:
        """Drop the counts of removed nodes."""
        gone = {node.number for node in nodes}
        self._counts = {key: count for key, count in self._counts.items() if key[0] not in gone}

    def forget_function(self, function: Function) -> None:
        """Drop the counts of a removed function."""
        self._counts = {key: count for key, count in self._counts.items() if key[1] is not function}

    def clear(self) -> None:
        self._counts.clear()


def _key(node: PathNode | None, function: Function) -> Key:
    return (node.number if node is not None else None, function)
