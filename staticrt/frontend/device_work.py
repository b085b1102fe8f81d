"""Work that the caller enqueued on devices before a trace is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def wait_for_devices(leaves: Iterable[Any]) -> None:
    """Wait for the current streams of the devices that tensors lie on, unless they capture.

    Raises:
        RuntimeError: earlier work there failed.
    """
    devices = {x.device for x in leaves if isinstance(x, torch.Tensor)}
    for device in devices:
        if device.type in ("cpu", "meta"):
            continue
        stream = torch.accelerator.current_stream(device)
        if not _is_capturing(stream):
            stream.synchronize()


def _is_capturing(stream: torch.Stream) -> bool:
    """Whether a stream captures, or may: before torch 2.13 only CUDA streams report it."""
    if hasattr(stream, "is_capturing"):
        return bool(stream.is_capturing())
    if stream.device.type != "cuda":
        return True
    with torch.cuda.device(stream.device):
        return bool(torch.cuda.is_current_stream_capturing())
