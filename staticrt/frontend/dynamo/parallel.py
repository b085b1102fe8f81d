"""`DistributedDataParallel` around a model: its own forward runs as it is, the model in it compiled.

All private names of `DistributedDataParallel` are here.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch


def is_parallel(function: Any) -> bool:
    """Whether a function is a `DistributedDataParallel` whose model can be compiled apart from it."""
    parallel = _class()
    if parallel is None or not isinstance(function, parallel):
        return False
    return getattr(type(function), "_run_ddp_forward", None) is getattr(parallel, "_run_ddp_forward", 0)


def calling(parallel: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a `DistributedDataParallel`, with `run` called where it calls its model.

    What it does before and after (broadcast buffers, prepare the reducer) is Python and collectives that no graph
    holds. Its reducer reads gradients by hooks on the parameters, as in eager.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        if parallel._use_python_reducer:
            return run(*args, **kwargs)
        with parallel._inside_ddp_forward():  # Dynamo cuts the model at the buckets
            return run(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        parallel.__dict__["_run_ddp_forward"] = forward
        try:
            return parallel(*args, **kwargs)
        finally:
            parallel.__dict__.pop("_run_ddp_forward", None)

    return call


def bucket_limits() -> tuple[int, ...]:
    """Bytes from which on each bucket of gradients is full, the last for all further ones, of the
    `DistributedDataParallel` in whose forward this thread is; () outside of one."""
    active = _active()
    if active is None:
        return ()
    listed = tuple(getattr(active, "bucket_bytes_cap_list", ()))
    if listed:
        return listed
    first = _first_bucket_bytes() if active.bucket_bytes_cap_default else active.bucket_bytes_cap
    return (int(first), int(active.bucket_bytes_cap))


def in_small_buckets() -> bool:
    """Whether the `DistributedDataParallel` in whose forward this thread is, if any, has small buckets."""
    return has_small_buckets(_active())


def has_small_buckets(module: Any) -> bool:
    """Whether Dynamo refuses to cut a model at the buckets of this `DistributedDataParallel`: an assertion fails."""
    parallel = _class()
    if parallel is None or not isinstance(module, parallel):
        return False
    cap = module.bucket_bytes_cap
    return isinstance(cap, int) and cap < _first_bucket_bytes()


def _first_bucket_bytes() -> int:
    return int(torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)  # type: ignore[attr-defined]


def _active() -> Any:
    """The `DistributedDataParallel` in whose forward this thread is: torch keeps one for the process."""
    parallel = _class()
    if parallel is None or parallel._active_ddp_module is None:
        return None
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is parallel.forward.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _class() -> Any:
    module = sys.modules.get("torch.nn.parallel.distributed")
    return module.DistributedDataParallel if module is not None else None
