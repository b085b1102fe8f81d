"""Hooks that torch runs for every module."""

from __future__ import annotations

from typing import Any

import torch


def global_hooks() -> list[tuple[str, dict[int, Any]]]:
    """Torch's tables of hooks that every module calls, with names, as roots of a snapshot."""
    module: Any = torch.nn.modules.module
    names = (f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))
    return [(name, getattr(module, name)) for name in names]


def has_global_hooks() -> bool:
    """Whether any of those tables holds a hook."""
    module: Any = torch.nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )
