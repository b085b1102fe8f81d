"""The default context of each thread and device. Autograd threads use the context of the thread that called backward."""

from __future__ import annotations

import threading

import torch

from staticrt.graphs.context import GraphContext

_KEY = "staticrt_graph_contexts"
_local = threading.local()


def default_context(device: torch.device | str = "cpu") -> GraphContext:
    """This thread's context on a device. Creates one if there is none or it was closed."""
    device = torch.device(device)
    contexts = _of_this_thread()
    name = f"{device.type}:{device.index or 0}"
    found = contexts.get(name)
    if found is None or found.closed:
        found = contexts[name] = GraphContext(device)
    return found


def _of_this_thread() -> dict[str, GraphContext]:
    contexts: dict[str, GraphContext] | None = getattr(_local, "contexts", None)
    if contexts is not None:
        return contexts
    # Autograd copies stashed objects into its threads, which do not inherit Python's thread locals.
    if torch._C._is_key_in_tls(_KEY):
        found: dict[str, GraphContext] = torch._C._get_obj_in_tls(_KEY)
        return found
    _local.contexts = {}
    torch._C._stash_obj_in_tls(_KEY, _local.contexts)
    made: dict[str, GraphContext] = _local.contexts
    return made


def close_default_contexts() -> None:
    """Close this thread's default contexts; the next use makes new ones."""
    contexts = _of_this_thread()
    for context in contexts.values():
        context.close()
    contexts.clear()
