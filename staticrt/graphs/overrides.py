"""`override`: run captured functions uncaptured inside a block."""

from __future__ import annotations

import contextlib
import threading

from staticrt.errors import OptionError
from staticrt.graphs.functions import Mode

_local = threading.local()


def _stack() -> list[tuple[bool, bool]]:
    stack: list[tuple[bool, bool]] | None = getattr(_local, "stack", None)
    if stack is None:
        stack = _local.stack = []
    return stack


class override(contextlib.ContextDecorator):
    """`with override(False):` runs captured functions of this thread uncaptured inside the block. Also a decorator.

    The innermost override decides. A backward follows the override around its forward, not the one around `backward()`.

    Args:
        forward: whether forward and inference functions are captured and replayed; None: as outside the block.
        backward: whether backward functions are; None: as outside the block.

    Example:
        >>> from staticrt.graphs import GraphContext, override
        >>> f = GraphContext("cpu").wrap(lambda x: x + 1)
        >>> with override(forward=False):
        ...     _ = f(torch.ones(2))
        >>> f.context.explain().captures
        0
    """

    def __init__(self, forward: bool | None = None, backward: bool | None = None) -> None:
        for name, value in (("forward", forward), ("backward", backward)):
            if value is not None and not isinstance(value, bool):
                raise OptionError(f"override: {name} is True, False or None, got {value!r}")
        self._forward = forward
        self._backward = backward

    def __enter__(self) -> override:
        forward, backward = decisions()
        _stack().append(
            (
                forward if self._forward is None else self._forward,
                backward if self._backward is None else self._backward,
            )
        )
        return self

    def __exit__(self, *_error: object) -> None:
        _stack().pop()


def decisions() -> tuple[bool, bool]:
    """Whether forward and inference functions, and backward functions, are captured in this thread now."""
    stack: list[tuple[bool, bool]] | None = getattr(_local, "stack", None)
    return stack[-1] if stack else (True, True)


def runs_plain(mode: Mode) -> bool:
    """Whether an override makes functions of this mode run uncaptured now."""
    return not decisions()[mode is Mode.BACKWARD]
