"""Keeps a tree bounded and consistent: eviction, dropped functions, failed captures, closing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.graphs import restore
from staticrt.graphs.functions import Function
from staticrt.graphs.paths import Paths, State
from staticrt.graphs.tree import Node, PathNode


class Limits(Paths):
    """Paths over a bounded tree."""

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.last_use = self._clock

    def _evict(self, parent: PathNode | None, newest: Node) -> None:
        """Keep at most `max_graphs` siblings: remove the least recently used ones with their descendants."""
        siblings = self._siblings(parent)
        every = [node for nodes in siblings.values() for node in nodes]
        while len(every) > self.policy.max_graphs:
            # The current path ends at `parent`: no sibling is on it.
            oldest = min((n for n in every if n is not newest), key=lambda n: n.last_use)
            every.remove(oldest)
            self._remove(siblings, oldest)

    def _remove(self, siblings: dict[Function, list[Node]], node: Node) -> None:
        nodes = siblings[node.function]
        nodes.remove(node)
        if not nodes:
            del siblings[node.function]
        self.evicted += 1
        self.recaptures.forget_nodes(node.descendants())
        node.drop()

    def forget(self, function: Function) -> None:
        """Drop every capture of a function; outputs that callers hold move out of the pool first."""
        if self._current is not None and any(n.function is function for n in self._current.path_nodes()):
            self._end_path(move=True)
        for siblings in (self.roots, *(node.children for node in self.nodes())):
            for node in list(siblings.get(function, ())):
                self._remove(siblings, node)
        self.recaptures.forget_function(function)

    def drop_all(self) -> None:
        """Drop every capture. REQUIRES: no path."""
        for root in self.all_roots():
            root.drop()
        self.roots.clear()
        self.recaptures.clear()

    def trim(self) -> int:
        """Drop every capture and give the pool's memory back; returns bytes."""
        self._end_path(move=True)
        self.drop_all()
        return self.pool.trim()

    def close(self) -> None:
        """Move what callers hold out of the pool, then free the graphs and the pool."""
        self.trim()

    def _number(self, warmup: bool = False) -> int:
        if warmup:
            self._next_warmup -= 1
            return self._next_warmup
        self._next_number += 1
        return self._next_number - 1

    def _note_thread(self) -> None:
        """Notice that a second thread calls.

        Moving a tensor that another thread uses at that moment would be a race. So results that the first thread holds
        keep the old pool, and from now on results leave the pool before their call returns.
        """
        thread = threading.get_ident()
        if self.shared or thread == self._thread or torch._C._current_graph_task_id() != -1:
            return  # autograd's threads run on behalf of the one that waits for them
        if self._thread is None:
            self._thread = thread
        elif self.policy.live_outputs == "clone":
            self.shared = True
            if self._current is not None and self._current.alive_storages():
                if self.state is State.REPLAY:
                    self._restore()  # the results own their blocks now
                self._set_none()
                self._new_pool()

    def _abandon_pool(self) -> None:
        """Switch to a new pool. Holders of memory in the old one keep it alive."""
        self._end_path(move=True)
        self._new_pool()

    def _new_pool(self) -> None:
        self.drop_all()
        self.pool = self.backend.new_pool(self.device)

    def _after_failure(self) -> None:
        """A warmup or capture was interrupted, so the exception's frames may hold memory of the pool."""
        self._suspect = True

    def _clear_suspicion(self) -> None:
        self._suspect = False
        try:
            restore.check(
                self.pool, self._current if self.state is not State.REPLAY else None, "after a failure"
            )
        except restore.PoolLeak:
            self._abandon_pool()

    def _check_leaks(self, function: Function, outputs: Sequence[Any], when: str) -> bool:
        """Whether the function kept tensors of the pool that it did not return. The manager then switches to a new pool."""
        try:
            self._check_pool(self._current, when)
        except restore.PoolLeak as leak:
            if self.policy.leaks == "raise":
                raise
            function.plain_reason = f"it keeps memory of the capture that it does not return: {leak.message}"
            self._warn(function, function.plain_reason)
            self._abandon_pool()
            self._escape(outputs)
            return True
        return False
