"""Traces that follow branches which data decides: running one, and noticing that another is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from staticrt.frontend.reasons import OTHERWISE

if TYPE_CHECKING:
    from staticrt.runtime.cached_trace import CachedTrace


OTHER_DECISION = "data took another branch than in the trace"


class OtherDecision(Exception):
    """Data took another branch than in the trace; the call has changed nothing."""


def run_decided(trace: CachedTrace, flat_inputs: Sequence[Any]) -> Sequence[Any]:
    """Run `trace.executable`.

    Raises:
        OtherDecision: nothing was written, and no random number was drawn.
    """
    try:
        return trace.executable.run(flat_inputs)
    except RuntimeError as error:
        if not str(error).startswith(OTHERWISE):
            raise
        raise OtherDecision from None
