"""Errors of signal handlers and Ctrl-C while Dynamo and AOTAutograd work for us.

Dynamo catches most errors, and either continues without compiled code or raises its own. An error of a signal handler is
not an error of the model; it must reach the caller.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from staticrt.frontend.reasons import is_interrupt, signal_handlers
from staticrt.native import _C

T = TypeVar("T")


def delivering(run: Callable[[], T]) -> T:
    """The result of `run`. Raises what a signal handler raises meanwhile, even if code in between catches it."""
    signal_handlers()
    answer_devices()
    return _C.deliver_signal_errors(run)


def delivering_through_dynamo(run: Callable[[], T]) -> T:
    """As `delivering`, for what Dynamo calls: it would wrap the error."""
    try:
        return delivering(run)
    except Exception as error:
        if is_interrupt(error):
            raise _unwrapped()(error) from error
        raise


@functools.cache
def _unwrapped() -> Callable[[Exception], Exception]:
    from torch._dynamo.exc import ShortenTraceback

    class Unwrapped(ShortenTraceback):
        """An error that Dynamo passes on; at the end it raises the original error without its own frames."""

        def __init__(self, error: Exception) -> None:
            super().__init__(str(error), first_useful_frame=None)
            self.error = error

        def remove_dynamo_frames(self) -> Exception:  # type: ignore[override]
            return self.error

    return Unwrapped


@functools.cache
def answer_devices() -> None:
    """Let C++ answer for devices of fake tensors beneath AOTAutograd too, permanently.

    Autograd asks for them where nothing may be raised: an interrupt of torch's Python there ends the process.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

    import staticrt.frontend.tracing.tracer  # noqa: F401  it tells C++ what fake tensors are

    for asked in (FakeTensor, FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode):
        _C.answer_devices_of(asked)
