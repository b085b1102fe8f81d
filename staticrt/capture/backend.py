"""Which `GraphBackend` serves which kind of device."""

from __future__ import annotations

import importlib
from typing import cast

import torch

from staticrt.capture.protocol import GraphBackend
from staticrt.errors import DeviceError

_backends: dict[str, GraphBackend] = {}
# Made at first use, so that a CPU-only process never loads what knows CUDA.
_known = {"cpu": "staticrt.capture.cpu", "cuda": "staticrt.capture.cuda"}


def register_backend(device_type: str, backend: GraphBackend) -> None:
    """Graphs of `device_type` ("cpu", "cuda", …) are captured by `backend` from now on."""
    _backends[device_type] = backend


def get_backend(device: torch.device | str) -> GraphBackend:
    """The backend of a device.

    Raises:
        DeviceError: there is none, or it cannot work here; the message says why.
    """
    kind = torch.device(device).type
    if kind not in _backends:
        if kind not in _known:
            raise DeviceError(
                f"no graphs on {kind!r} devices: no backend is registered; known: {sorted({*_known, *_backends})}",
                fix="staticrt.capture.backend.register_backend",
            )
        module = importlib.import_module(_known[kind])
        register_backend(kind, cast(GraphBackend, module.make_backend()))
    return _backends[kind]
