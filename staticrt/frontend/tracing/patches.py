"""The process state under which a model is recorded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch

from staticrt import locks
from staticrt.frontend.tracing import autocast, compiling
from staticrt.torch_private import autograd_flags

lock = locks.reentrant()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One `torch.export` at a time, and none while another thread is in Dynamo.

    Both set torch's flag for compilation and restore its former value: interleaved, it would stay set.
    """
    dynamo = sys.modules.get("torch._dynamo.convert_frame")  # a trace does not wait for its import
    compile_lock = getattr(dynamo, "compile_lock", None) or contextlib.nullcontext()
    with compile_lock, lock:
        yield


@contextlib.contextmanager
def tracing(oblivious: bool, autograd: bool = False) -> Iterator[None]:
    """Let models see that they are being compiled, and let control flow reach the tracer whole, in this thread only.

    Args:
        oblivious: sizes 0 and 1 are like any other.
        autograd: a backward is recorded as well.
    """
    from torch._C._dynamo import eval_frame
    from torch.fx.experimental import _config

    thread = compiling.thread
    before = thread.traces, thread.differentiates
    grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    put_flags = autograd_flags()
    dynamo = None
    thread.traces, thread.differentiates = True, autograd
    try:
        # Dynamo is switched off in this thread: a part that it compiled may call this model.
        dynamo = eval_frame.set_eval_frame(None)
        with (
            autocast.noted(),
            _config.patch(backed_size_oblivious=oblivious),  # type: ignore[attr-defined]
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
        ):
            # Switching inference mode off has given these their defaults, and gives them back when it ends.
            put_flags()
            yield
    finally:
        thread.traces, thread.differentiates = before
        eval_frame.set_eval_frame(dynamo)
