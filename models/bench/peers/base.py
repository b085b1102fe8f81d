"""What the benchmark needs to know of a peer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = Callable[..., Any]


def _nothing() -> None:
    return None


def _no_facts(_call: Call) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Peer:
    """A way to run a module.

    Attributes:
        name: its name on the command line.
        prepare: (module in eval mode, positional arguments, threads) -> callable that takes such arguments and
            returns the module's outputs as torch tensors, in order, in any nesting. Runs without gradients.
            staticrt's own also takes keywords of `staticrt.compile`.
        packages: distributions it needs, as the package index names them, and how they are imported.
        slow: compiles for seconds, or is a variant of another; left out of quick runs unless asked for.
        load: imports what `prepare` needs; its time does not count as the model's.
        facts: (the callable, after its first calls) -> what it tells about itself, as JSON.
    """

    name: str
    prepare: Callable[..., Call]
    packages: tuple[tuple[str, str], ...] = ()
    slow: bool = False
    load: Callable[[], None] = _nothing
    facts: Callable[[Call], dict[str, Any]] = _no_facts

    def missing(self) -> list[str]:
        """Distributions that are not installed."""
        return [name for name, module in self.packages if importlib.util.find_spec(module) is None]

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name, _module in self.packages}
