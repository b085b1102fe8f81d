"""The registry of accelerators: other compilers that run subgraphs of a graph. Users see `staticrt.api.accelerators`.

The nodes that an accelerator supports become subgraphs, which it compiles for each combination of shapes; all other
nodes stay in the runtime. A subgraph that it cannot compile runs operator by operator, and `explain()` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staticrt.errors import AcceleratorUnavailable, OptionError
from staticrt.lowering.accelerators.protocol import Accelerator

__all__ = ["Accelerator", "available", "find", "register_accelerator"]

# name -> its factory, in the order that "auto" tries them; built-in accelerators come after those of users
_built_in: dict[str, Callable[[], Accelerator]] = {}
_NOT_AUTOMATIC = frozenset({"reference"})  # it serves tests and speeds nothing up
_registered: dict[str, Callable[[], Accelerator]] = {}


def register_accelerator(name: str, make: Callable[[], Accelerator]) -> None:
    """Register an accelerator; "auto" tries registered ones before the built-in ones, in order of registration.

    Raises:
        OptionError: the name is taken, or "auto".
    """
    if name == "auto" or name in _registered or name in _built_in:
        raise OptionError(f"accelerator {name!r} exists already")
    _registered[name] = make


def register_built_in(name: str, make: Callable[[], Accelerator]) -> None:
    """Make an accelerator known that comes with the package; a second registration replaces the first."""
    _built_in[name] = make


def unregister_accelerator(name: str) -> None:
    """Forget a registered accelerator; compiled functions keep theirs."""
    _registered.pop(name, None)


def names() -> list[str]:
    return [*_registered, *_built_in]


def _make(name: str) -> Accelerator:
    return (_registered.get(name) or _built_in[name])()


def available() -> dict[str, tuple[bool, str]]:
    """Name -> (whether it can be used here, what was found or what is missing)."""
    return {name: _make(name).is_available() for name in names()}


def check_name(choice: str) -> None:
    """Raises OptionError if there is no accelerator of that name."""
    if choice != "auto" and choice not in names():
        raise OptionError(f"there is no accelerator {choice!r}", fix=f"one of auto, {', '.join(names())}")


def find(choice: str | None) -> tuple[Accelerator | None, str]:
    """The accelerator for an option value, or None and the reason.

    Args:
        choice: None for no accelerator, "auto" for the first that is available, or a name.

    Raises:
        OptionError: there is no accelerator of that name.
        AcceleratorUnavailable: `choice` is a name and this accelerator cannot be used here.
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
