"""The sign of zero, which Dynamo's guards do not compare: -0.0 equals 0.0, but `1 / x` differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo's guards, once per process: in graphs for us they compare the sign of a zero."""
    from torch._dynamo.guards import GuardBuilder, get_verbose_code_parts

    equals = GuardBuilder.EQUALS_MATCH
    takes_stack = "user_stack" in equals.__code__.co_names  # releases differ

    @functools.wraps(equals)
    def equals_by_sign(self: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
        equals(self, guard, *args, **kwargs)
        value = self.get(guard)
        if _has_zero(value) and is_for_us(self.check_fn_manager.output_graph):
            parts = get_verbose_code_parts([f"repr({self.arg_ref(guard)}) == {repr(value)!r}"], guard)
            stack = (guard.user_stack,) if takes_stack else ()
            self.get_guard_manager(guard).add_lambda_guard(_same_as(value), parts, *stack)

    GuardBuilder.EQUALS_MATCH = equals_by_sign  # type: ignore[method-assign]


def _has_zero(value: Any) -> bool:
    if isinstance(value, (tuple, slice)):
        parts = value if isinstance(value, tuple) else (value.start, value.stop, value.step)
        return any(map(_has_zero, parts))
    if isinstance(value, complex):
        return 0.0 in (value.real, value.imag)
    return isinstance(value, float) and value == 0.0


def _same_as(value: Any) -> Callable[[Any], bool]:
    if type(value) is not float:
        shown = repr(value)
        return lambda found: repr(found) == shown
    sign = math.copysign(1.0, value)
    return lambda found: math.copysign(1.0, found) == sign
