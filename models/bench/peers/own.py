"""staticrt itself."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from typing import Any

from torch import Tensor, nn

import staticrt
from staticrt.models.bench.peers.base import Call, Peer

# Nodes whose outputs are planned, or that have no bytes of their own (views and numbers).
HELD_KINDS = ("managed", "native")


def _load() -> None:
    importlib.import_module("staticrt.native")
    importlib.import_module("staticrt.api.compile")


def _prepare(module: nn.Module, arguments: tuple[Tensor, ...], _threads: int, **options: Any) -> Call:
    return staticrt.compile(module, arguments, **options)


def _facts(call: Any) -> dict[str, Any]:
    """What `explain()` says: graphs, nodes by kind, and what runs eagerly and why."""
    explanation = call.explain()
    kinds: Counter[str] = Counter()
    for trace in explanation.traces:
        kinds.update(dict(trace.kinds))
    nodes = sum(trace.nodes for trace in explanation.traces)
    return {
        "traces": len(explanation.traces),
        "executors": sorted({trace.executor for trace in explanation.traces}),
        "nodes": kinds["total"] or nodes,
        "kinds": dict(sorted(kinds.items())),
        # Without kinds the runtime did not say: not zero.
        "managed_or_view_nodes": sum(kinds[kind] for kind in HELD_KINDS) if kinds else None,
        "eager": [f"{part.what}: {part.reason}" for part in explanation.eager],
    }


STATICRT = Peer("staticrt", _prepare, load=_load, facts=_facts)
STATICRT_PACKED = Peer(
    "staticrt_packed", functools.partial(_prepare, weight_memory=1), slow=True, load=_load, facts=_facts
)
