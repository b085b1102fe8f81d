"""Edges of trees: how often a function did not find, after a node, the capture it should have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from staticrt.capture.checks import Check, Mismatch
from staticrt.capture.functions import Function
from staticrt.capture.policy import Policy
from staticrt.capture.tree import PathNode

Key = tuple[int | None, Function]
MAX_SURPRISES = 2


@dataclasses.dataclass
class Edge:
    """One function after one node (None: at a root).

    Args:
        mismatches: unexpected ones since the edge last tried to capture.
        plain_calls: calls left that run plain.
        surprises: calls run plain because something outlived the inputs it used to die with.
        retries: how often the limit was reached.
        reason: of the last mismatch.
    """

    mismatches: int = 0
    plain_calls: int = 0
    surprises: int = 0
    retries: int = 0
    reason: str = ""


class Edges:
    """Mismatches by edge, and what follows from them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._edges: dict[Key, Edge] = {}

    def get(self, node: PathNode | None, function: Function) -> Edge | None:
        """What is known of an edge; None: it never mismatched."""
        return self._edges.get(_key(node, function))

    def count(self, node: PathNode | None, function: Function, mismatch: Mismatch) -> bool:
        """Note a mismatch that leads to another capture; whether the limit is exceeded by it.

        A static input at another place is expected churn and not counted.
        """
        edge = self._edges.setdefault(_key(node, function), Edge())
        edge.reason = mismatch.text()
        if mismatch.check is Check.STATIC:
            return False
        edge.mismatches += 1
        if edge.mismatches <= self._policy.recapture_limit:
            return False
        edge.retries += 1
        edge.plain_calls = max(1, self._policy.recapture_limit) * 2**edge.retries
        return True

    def surprised(self, node: PathNode | None, function: Function, mismatch: Mismatch) -> bool:
        """Whether a call whose inputs' bytes would outlive it unexpectedly runs plain.

        The first few do. If it goes on, the new pattern deserves a capture of its own.
        """
        if mismatch.check is not Check.DEAD_AFTER:
            return False
        edge = self._edges.setdefault(_key(node, function), Edge())
        edge.reason = mismatch.text()
        edge.surprises += 1
        return edge.surprises <= MAX_SURPRISES

    def limit_reached(self, node: PathNode | None, function: Function) -> str | None:
        """Why a call on this edge runs plain, if it does. Each call brings the next try nearer."""
        edge = self._edges.get(_key(node, function))
        if edge is None or edge.plain_calls == 0:
            return None
        if self._policy.retry_plain:
            edge.plain_calls -= 1
            if edge.plain_calls == 0:
                edge.mismatches = -1  # the next one captures, whatever the limit
        return f"more than {self._policy.recapture_limit} unexpected mismatches, the last: {edge.reason}"

    def forget_nodes(self, nodes: Iterable[PathNode]) -> None:
        """Drop edges from nodes that are gone."""
        gone = {node.number for node in nodes}
        self._edges = {key: edge for key, edge in self._edges.items() if key[0] not in gone}

    def forget_function(self, function: Function) -> None:
        """Drop edges to a function that is gone."""
        self._edges = {key: edge for key, edge in self._edges.items() if key[1] is not function}

    def clear(self) -> None:
        self._edges.clear()


def _key(node: PathNode | None, function: Function) -> Key:
    return (node.number if node is not None else None, function)
