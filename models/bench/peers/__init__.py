"""The peers of the benchmark, in the order of its tables."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Iterable

from torch import Tensor, nn

from staticrt.errors import OptionError
from staticrt.models.bench.peers.base import Call, Peer
from staticrt.models.bench.peers.inductor import AOT_INDUCTOR, INDUCTOR, INDUCTOR_MAX
from staticrt.models.bench.peers.onnx_runtime import ONNX_RUNTIME
from staticrt.models.bench.peers.openvino import OPENVINO
from staticrt.models.bench.peers.own import STATICRT, STATICRT_PACKED
from staticrt.models.bench.peers.torchscript import STATIC_RUNTIME, TORCHSCRIPT

__all__ = ["EAGER", "PEERS", "Call", "Peer", "resolve", "select"]


def _eager(module: nn.Module, _arguments: tuple[Tensor, ...], _threads: int) -> Call:
    return module


EAGER = Peer("eager", _eager)  # against itself: shows how far ratios scatter

PEERS: tuple[Peer, ...] = (
    EAGER, TORCHSCRIPT, STATIC_RUNTIME, INDUCTOR, INDUCTOR_MAX, AOT_INDUCTOR, ONNX_RUNTIME, OPENVINO,
    STATICRT, STATICRT_PACKED,
)  # fmt: skip
_BY_NAME = {peer.name: peer for peer in PEERS}


def resolve(name: str) -> Peer:
    """The peer of that name, or the `Peer` that "package.module:attribute" names.

    Raises:
        OptionError: there is none.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise OptionError(f"peer {name!r} cannot be loaded: {error}") from error
        if not isinstance(found, Peer):
            raise OptionError(f"{name!r} is a {type(found).__name__}, expected a Peer")
        return found
    near = difflib.get_close_matches(name, _BY_NAME, n=3) or list(_BY_NAME)
    raise OptionError(
        f"no peer matches {name!r}",
        fix=f"choose from {', '.join(near)}, or name your own as package.module:attribute",
    )


def select(patterns: Iterable[str] | None = None, *, quick: bool = False) -> list[str]:
    """Names of the peers to measure: those asked for, or all; a quick run leaves the slow ones out.

    Raises:
        OptionError: a pattern matches nothing.
    """
    if patterns is None:
        return [peer.name for peer in PEERS if not (quick and peer.slow)]
    names: list[str] = []
    for pattern in patterns:
        found = [name for name in _BY_NAME if fnmatch.fnmatchcase(name, pattern)]
        names += found or [(resolve(pattern), pattern)[1]]
    return list(dict.fromkeys(names))
