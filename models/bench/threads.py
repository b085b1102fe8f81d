"""The number of threads of torch's operators during measurements."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Let operators use `count` threads; their number is restored, also where the block changes it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
