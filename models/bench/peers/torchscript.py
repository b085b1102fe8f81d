"""TorchScript, and the Static Runtime that PyTorch carries for it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from staticrt.models.bench.peers.base import Call, Peer


def _frozen(module: nn.Module, arguments: tuple[Tensor, ...]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TracerWarning and the deprecation of TorchScript
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            module, arguments, check_trace=False
        )
        return torch.jit.freeze(traced)


def _torchscript(module: nn.Module, arguments: tuple[Tensor, ...], _threads: int) -> Call:
    call: Call = torch.jit.optimize_for_inference(_frozen(module, arguments))
    return call


def _static_runtime(module: nn.Module, arguments: tuple[Tensor, ...], _threads: int) -> Call:
    frozen = _frozen(module, arguments)
    call: Call = torch._C._jit_to_static_module(frozen._c)  # type: ignore[attr-defined]
    return call


TORCHSCRIPT = Peer("torchscript", _torchscript)
STATIC_RUNTIME = Peer("static_runtime", _static_runtime)
