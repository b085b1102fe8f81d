"""Where the kinds of state are listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Read = Callable[[torch.Tensor], torch.Tensor]
Change = Callable[[float], Any]
KINDS: dict[str, Callable[[], tuple[Read, Change]]] = {}


def kind(make: Callable[[], tuple[Read, Change]]) -> Callable[[], tuple[Read, Change]]:
    KINDS[make.__name__] = make
    return make


def setter(owner: Any, name: str) -> Change:
    return lambda number: setattr(owner, name, number)
