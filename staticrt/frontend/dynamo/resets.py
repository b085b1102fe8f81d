"""`torch._dynamo.reset()` also releases graphs of Dynamo that we compiled.

Dynamo names the functions that it resumes after graph breaks, and the compiled graphs that they call, in the globals of the
module they are of, and never removes them. One of our graphs would keep arenas and packed weights.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Protocol

from staticrt import locks


class CompiledGraph(Protocol):
    """A graph of Dynamo, compiled."""

    def release(self) -> None:
        """Drop what was compiled. Later calls still work."""


def release_at_reset(graph: CompiledGraph) -> None:
    """Release `graph`, if it lives, when Dynamo is reset."""
    from torch._dynamo.eval_frame import cached_backends  # whose `reset` Dynamo calls; then it forgets them

    _graphs.add(graph)
    if id(_backend) not in cached_backends:
        cached_backends[id(_backend)] = _backend  # type: ignore[assignment]


class _Backend:
    """In the form that Dynamo expects of a backend with something to reset."""

    def reset(self) -> None:
        with contextlib.ExitStack() as releases:  # each is released, also where one before it raised
            for graph in locks.members(_graphs):
                releases.callback(graph.release)


_graphs: weakref.WeakSet[Any] = weakref.WeakSet()
_backend = _Backend()
