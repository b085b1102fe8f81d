"""Restore the pool's bookkeeping after replays, so that a capture or warmup can allocate from the pool.

A replay does not update the bookkeeping: the allocator still sees the pool as the last capture, warmup or restore left it.
"""

from __future__ import annotations

import enum
import gc

from staticrt.errors import InternalError
from staticrt.graphs.liveness import PathOutput
from staticrt.graphs.protocol import GraphPool, LeakInfo
from staticrt.graphs.tree import Node, PathNode


class RestoreStep(enum.Enum):
    """One step of a restore."""

    DROP_CACHES = "cached tensors of the path are dropped"
    FREE_DEAD = "blocks that are live in the image and dead since are freed"
    CHECK_LIVE = "live blocks are exactly the alive storages"


# The steps that run. Tests remove one to see that a check fails.
ENABLED: set[RestoreStep] = set(RestoreStep)


class PoolLeak(InternalError):
    """The pool's live blocks and the live outputs of the path differ."""


def restore(pool: GraphPool, node: Node, check_pool: bool) -> list[PathOutput]:
    """Bring the pool to the state in which `node` can have children.

    Returns:
        The alive storages of the path; they own their blocks now.

    Raises:
        PoolLeak: live blocks and alive storages differ afterwards.
    """
    if RestoreStep.DROP_CACHES in ENABLED:
        # They hold memory that later captures should be able to reuse.
        for each in node.path_nodes():
            assert isinstance(each, Node)
            each.drop_caches()
    alive = node.alive_storages()
    dead = node.freed_since()
    assert node.image is not None
    pool.restore(node.image, [output.ref for output in alive])
    if RestoreStep.FREE_DEAD in ENABLED:
        for ptr in dead:
            pool.free(ptr)
    if check_pool:
        check(pool, node, "after restoring the pool")
    return alive


def check(pool: GraphPool, node: PathNode | None, when: str, more: tuple[int, ...] = ()) -> None:
    """Compare the pool's live blocks with the alive storages of the path.

    Args:
        more: further addresses that are expected to be live.

    Raises:
        PoolLeak: they differ, even after a garbage collection.
    """
    if RestoreStep.CHECK_LIVE not in ENABLED:
        return
    leak = pool.check_live(_expected(node, more))
    if leak is None:
        return
    gc.collect()  # a reference cycle may keep a dead tensor
    leak = pool.check_live(_expected(node, more))
    if leak is not None:
        raise PoolLeak(describe(leak, when), fix="return the tensor instead of keeping it, or clone it first")


def _expected(node: PathNode | None, more: tuple[int, ...]) -> set[int]:
    alive = node.alive_storages() if node is not None else []
    return {output.ptr for output in alive} | set(more)


def describe(leak: LeakInfo, when: str) -> str:
    """The difference as text, with the place of each allocation where it is known."""
    parts = []
    if leak.unexpected:
        parts.append(f"{len(leak.unexpected)} tensor(s) in the graph pool are not outputs")
        parts += [
            f"  {address:#x}: {nbytes} bytes" + (f", allocated at {origin}" if origin else "")
            for address, nbytes, origin in leak.unexpected
        ]
    if leak.missing:
        parts.append(f"{len(leak.missing)} outputs have no block: {', '.join(map(hex, leak.missing))}")
    return f"{when}: " + "\n".join(parts)
