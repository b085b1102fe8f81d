"""Hooks that torch runs for every module."""

from __future__ import annotations

from typing import Any

import torch

_MODULE: Any = torch.nn.modules.module
_NAMES = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))


def global_hooks() -> list[tuple[str, dict[int, Any]]]:
    """Torch's tables of hooks that every module calls, with names, as roots of a snapshot."""
    return [(name, getattr(_MODULE, name)) for name in _NAMES]


def has_global_hooks() -> bool:
    """Whether any of those tables holds a hook."""
    return any(getattr(_MODULE, name) for name in _NAMES)
