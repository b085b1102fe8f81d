"""torch.compile with its default backend, and the same ahead of time."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from staticrt.models.bench.peers.base import Call, Peer


def _load() -> None:
    importlib.import_module("torch._inductor.compile_fx")


def _load_ahead() -> None:
    _load()
    importlib.import_module("torch._inductor.package")


def _configure(threads: int) -> None:
    from torch._inductor import config

    config.cpp.threads = threads
    config.force_disable_caches = True  # else a second run would show no compile time


def _inductor(module: nn.Module, _arguments: tuple[Tensor, ...], threads: int) -> Call:
    _configure(threads)
    compiled: Call = torch.compile(module)
    return compiled


def _inductor_max(module: nn.Module, _arguments: tuple[Tensor, ...], threads: int) -> Call:
    _configure(threads)
    options: dict[str, str | int | bool | Call] = {
        "max_autotune": True,
        "freezing": True,
        "triton.cudagraphs": False,
    }
    compiled: Call = torch.compile(module, options=options)
    return compiled


def _ahead(module: nn.Module, arguments: tuple[Tensor, ...], threads: int) -> Call:
    _configure(threads)
    program = torch.export.export(module, arguments, strict=False)
    folder = tempfile.mkdtemp()
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(Path(folder, "model.pt2")))
    call: Call = torch._inductor.aoti_load_package(package)
    return call


INDUCTOR = Peer("inductor", _inductor, slow=True, load=_load)
INDUCTOR_MAX = Peer("inductor_max", _inductor_max, slow=True, load=_load)
AOT_INDUCTOR = Peer("aot_inductor", _ahead, slow=True, load=_load_ahead)
