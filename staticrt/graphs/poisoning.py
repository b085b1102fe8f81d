"""Poison overwritten outputs: an access raises instead of reading other bytes."""

from __future__ import annotations

from staticrt.graphs.functions import Mode
from staticrt.graphs.storage import poison
from staticrt.graphs.tree import Node, PathNode


def message(trace: str | None, gradient: bool) -> str:
    """The error message of an access to an overwritten output."""
    found = trace.strip() if trace else "[Could not find stack trace]"
    if gradient:
        return (
            "Error: accessing gradient tensor output of a captured graph that has been overwritten by a subsequent "
            f"run. Stack trace: {found}. Allocate .grad before the captured backward runs, set .grad to None before "
            'each backward, or use live_outputs="clone".'
        )
    return (
        "Error: accessing tensor output of a captured graph that has been overwritten by a subsequent run. "
        f'Stack trace: {found}. Clone the tensor before the next call, or use live_outputs="clone".'
    )


def poison_path(node: PathNode) -> int:
    """Poison all live outputs of the path. Returns how many storages that were."""
    texts: dict[int, str] = {}
    for each in node.path_nodes():
        if isinstance(each, Node):
            each.drop_caches()
        gradient = each.function.mode is Mode.BACKWARD
        for index, output in enumerate(each.outputs):
            if output is not None:
                texts.setdefault(id(output), message(each.function.stack_trace(index), gradient))
    held = node.alive_storages()
    for output in held:
        poison(output.ref, texts.get(id(output), message(None, False)))
        output.moved = True
    return len(held)
