"""Graph capture and replay: graph trees over a small device interface (`protocol.py`).

`GraphContext` captures functions by hand; `staticrt.compile(module, graphs=True)` does it for compiled modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staticrt.capture.backend import get_backend as get_backend
    from staticrt.capture.backend import register_backend as register_backend
    from staticrt.capture.context import GraphContext as GraphContext
    from staticrt.capture.defaults import close_default_contexts as close_default_contexts
    from staticrt.capture.defaults import default_context as default_context
    from staticrt.capture.generations import mark_step_begin as mark_step_begin
    from staticrt.capture.overrides import override as override
    from staticrt.capture.policy import Policy as Policy

_LAZY = {
    "GraphContext": "staticrt.capture.context",
    "Policy": "staticrt.capture.policy",
    "close_default_contexts": "staticrt.capture.defaults",
    "default_context": "staticrt.capture.defaults",
    "get_backend": "staticrt.capture.backend",
    "mark_step_begin": "staticrt.capture.generations",
    "override": "staticrt.capture.overrides",
    "register_backend": "staticrt.capture.backend",
}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'staticrt.capture' has no attribute {name!r}")
