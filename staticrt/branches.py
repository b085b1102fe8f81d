"""Captures that follow branches which data decides: running one, and telling that another is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from staticrt.frontend.reasons import OTHERWISE

if TYPE_CHECKING:
    from staticrt.entry import Entry

# Captures of one kind of call that differ in what data decided; beyond, the model is cut at its branches.
MAX_BRANCHES = 4


class OtherDecision(Exception):
    """Data decided otherwise than in `entry`; the call has changed nothing."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry = entry


def run_decided(entry: Entry, flat_inputs: Sequence[Any]) -> Sequence[Any]:
    """As `entry.executable.run`.

    Raises:
        OtherDecision: nothing was written; generators are as before.
    """
    generator = torch.get_rng_state() if entry.captured.random else None
    try:
        return entry.executable.run(flat_inputs)
    except RuntimeError as error:
        if not str(error).startswith(OTHERWISE):
            raise
        if generator is not None:
            torch.set_rng_state(generator)
        raise OtherDecision(entry) from None
