"""References without cycles: what a trace held is freed when it ends, not when the garbage collector runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def weakly(method: Callable[..., R]) -> Callable[..., R]:
    """A bound method that does not keep its object alive, for what the object itself owns."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> R:
        bound = reference()
        assert bound is not None, "called after its owner was gone"
        return bound(*args, **kwargs)

    return call
