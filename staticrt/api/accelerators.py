"""Accelerators: optional compilers that run subgraphs of a graph.

An accelerator implements the protocol `Accelerator`; `register_accelerator` adds it. With
`staticrt.compile(model, accelerators="name")` the nodes that it supports become subgraphs, which it compiles for
each combination of shapes; all other nodes stay in the runtime. A subgraph that it cannot compile runs operator by
operator, and `explain()` says why.
"""

from __future__ import annotations

from staticrt.lowering.accelerators import (
    Accelerator,
    available,
    check_name,
    find,
    register_accelerator,
    register_built_in,
    unregister_accelerator,
)
from staticrt.lowering.accelerators.reference import Reference

__all__ = [
    "Accelerator", "available", "check_name", "find", "register_accelerator", "unregister_accelerator",
]  # fmt: skip


def _tensorrt() -> Accelerator:
    from staticrt.interop.tensorrt.accelerator import TensorRT

    return TensorRT()


register_built_in("tensorrt", _tensorrt)
register_built_in("reference", Reference)
