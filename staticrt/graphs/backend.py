"""The registry of graph backends, by device type."""

from __future__ import annotations

import importlib
from typing import cast

import torch

from staticrt.errors import DeviceError
from staticrt.graphs.protocol import GraphBackend

_backends: dict[str, GraphBackend] = {}
# Imported at first use, so that a CPU-only process does not load CUDA code.
_known = {
    "cpu": "staticrt.graphs.cpu",
    "cuda": "staticrt.graphs.cuda",
    "sim": "staticrt.graphs.simulated",
}


def register_backend(device_type: str, backend: GraphBackend) -> None:
    """Let `backend` capture graphs of `device_type` ("cpu", "cuda", …) from now on."""
    _backends[device_type] = backend


def get_backend(device: torch.device | str) -> GraphBackend:
    """The backend of a device.

    Raises:
        DeviceError: no backend is registered, or it does not work on this machine. The message says why.
    """
    kind = torch.device(device).type
    if kind not in _backends:
        if kind not in _known:
            raise DeviceError(
                f"no graphs on {kind!r} devices: no backend is registered; known: {sorted({*_known, *_backends})}",
                fix="staticrt.graphs.backend.register_backend",
            )
        module = importlib.import_module(_known[kind])
        register_backend(kind, cast(GraphBackend, module.make_backend()))
    return _backends[kind]
