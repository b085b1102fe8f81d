"""Optional accelerators: other compilers that take islands of a graph.

An accelerator is anything with the four members of `Accelerator`; `register_accelerator` makes it known. With
`staticrt.compile(model, accelerators="name")` the nodes it supports are cut out as islands, each compiled by it for
the shapes it meets; everything else stays in the runtime. What it refuses runs as before, and `explain()` says why.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from staticrt.accelerators.protocol import Accelerator
from staticrt.errors import AcceleratorUnavailable, OptionError

__all__ = ["Accelerator", "available", "find", "register_accelerator"]

# name -> where it is made; in the order that "auto" tries them
_BUILT_IN: dict[str, str] = {
    "tensorrt": "staticrt.accelerators.tensorrt:TensorRT",
    "reference": "staticrt.accelerators.reference:Reference",
}
_NOT_AUTOMATIC = frozenset({"reference"})  # it proves the path, it speeds nothing up
_registered: dict[str, Callable[[], Accelerator]] = {}


def register_accelerator(name: str, make: Callable[[], Accelerator]) -> None:
    """Make an accelerator known under a name; "auto" tries those registered first, in order.

    Raises:
        OptionError: the name is taken, or "auto".
    """
    if name == "auto" or name in _registered or name in _BUILT_IN:
        raise OptionError(f"there is an accelerator named {name!r} already")
    _registered[name] = make


def unregister_accelerator(name: str) -> None:
    """Forget a registered accelerator; compiled functions keep theirs."""
    _registered.pop(name, None)


def names() -> list[str]:
    return [*_registered, *_BUILT_IN]


def _make(name: str) -> Accelerator:
    if name in _registered:
        return _registered[name]()
    module, _, attribute = _BUILT_IN[name].partition(":")
    made: Accelerator = getattr(importlib.import_module(module), attribute)()
    return made


def available() -> dict[str, tuple[bool, str]]:
    """Name -> (whether it can be used here, what was found or what is missing)."""
    return {name: _make(name).is_available() for name in names()}


def check_name(choice: str) -> None:
    """Raises OptionError if there is no accelerator of that name."""
    if choice != "auto" and choice not in names():
        raise OptionError(f"there is no accelerator {choice!r}", fix=f"one of auto, {', '.join(names())}")


def find(choice: str | None) -> tuple[Accelerator | None, str]:
    """The accelerator an option value asks for, and why it is none.

    Args:
        choice: None: none. "auto": the first that is available. A name: that one.

    Raises:
        OptionError: no such name.
        AcceleratorUnavailable: asked for by name, and it cannot be used here.
    """
    if choice is None:
        return None, ""
    if choice == "auto":
        reasons = []
        for name in names():
            if name in _NOT_AUTOMATIC:
                continue
            accelerator = _make(name)
            usable, reason = accelerator.is_available()
            if usable:
                return accelerator, ""
            reasons.append(f"{name}: {reason}")
        return None, "; ".join(reasons) or "none is registered"
    check_name(choice)
    accelerator = _make(choice)
    usable, reason = accelerator.is_available()
    if not usable:
        fix: Any = getattr(accelerator, "fix", None)
        raise AcceleratorUnavailable(f"accelerator {choice!r} cannot be used: {reason}", fix=fix)
    return accelerator, ""
