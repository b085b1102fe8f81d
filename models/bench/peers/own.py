"""staticrt itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import staticrt
from staticrt.models.bench.peers.base import Call, Peer


def _load() -> None:
    import staticrt.native  # noqa: F401  the C++ extension


def _prepare(module: nn.Module, arguments: tuple[Tensor, ...], _threads: int) -> Call:
    call: Call = staticrt.compile(module, arguments)
    return call


def _facts(_call: Call) -> dict[str, Any]:
    return {}


STATICRT = Peer("staticrt", _prepare, load=_load, facts=_facts)
