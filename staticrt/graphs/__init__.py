"""Stage 8: captures runs and replays them: CPU, `sim`, CUDA.

`GraphContext` captures functions by hand; `staticrt.compile(module, graphs=True)` does it for compiled modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staticrt.graphs.backend import get_backend as get_backend
    from staticrt.graphs.backend import register_backend as register_backend
    from staticrt.graphs.context import GraphContext as GraphContext
    from staticrt.graphs.defaults import close_default_contexts as close_default_contexts
    from staticrt.graphs.defaults import default_context as default_context
    from staticrt.graphs.generations import mark_step_begin as mark_step_begin
    from staticrt.graphs.overrides import override as override
    from staticrt.graphs.policy import Policy as Policy

_LAZY = {
    "GraphContext": "staticrt.graphs.context",
    "Policy": "staticrt.graphs.policy",
    "close_default_contexts": "staticrt.graphs.defaults",
    "default_context": "staticrt.graphs.defaults",
    "get_backend": "staticrt.graphs.backend",
    "mark_step_begin": "staticrt.graphs.generations",
    "override": "staticrt.graphs.overrides",
    "register_backend": "staticrt.graphs.backend",
}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'staticrt.graphs' has no attribute {name!r}")
