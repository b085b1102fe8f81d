"""Stage 9: differentiates regions ahead of time and compiles training steps.

`debug_state()` shows every region in use. Importing this package costs nothing.
"""

from __future__ import annotations

from typing import Any


def debug_state() -> list[dict[str, Any]]:
    """What each compiled region that is in use runs, in the order in which they were compiled.

    Returns:
        Per region: its name, calls, the reason if it runs eagerly, and for each graph (forward, backward, inference)
        its plans by key with their nodes and calls, and the cache's hits, misses and evictions.
    """
    from staticrt.training.aot_region import regions

    return [region.debug_state() for region in regions()]


def __getattr__(name: str) -> Any:
    if name == "optim":
        import importlib

        return importlib.import_module("staticrt.training.optim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
