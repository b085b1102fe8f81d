"""Which of Dynamo's graphs go to our backend: Dynamo for other backends stays as it is."""

from __future__ import annotations

from typing import Any

# Where Dynamo's wrappers of a backend, `functools.partial` and a DDP optimiser's method hold what they call.
_INNER = ("__wrapped__", "compiler_fn", "func", "backend_compile_fn", "__self__")


def is_for_us(graph: Any) -> bool:
    """Whether Dynamo compiles an `OutputGraph` with our backend."""
    backend = getattr(graph, "compiler_fn", None)
    for _ in range(8):  # wrappers
        if str(getattr(backend, "__module__", "")).startswith("staticrt."):
            return True
        inner = next((name for name in _INNER if hasattr(backend, name)), None)
        if inner is None:
            return False
        backend = getattr(backend, inner)
    return False
