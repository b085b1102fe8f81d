"""Work of the caller that is still to come on devices when a trace is made."""

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
        is_capturing = getattr(stream, "is_capturing", None)  # torch 2.13 has it
        if is_capturing is not None and not is_capturing():
            stream.synchronize()
