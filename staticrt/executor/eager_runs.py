"""Calls that ran eagerly again and again, and whose next one is not looked at anew.

Taking a call apart and finding the state of its key costs some microseconds. Where the answer has been "eagerly" for
many calls of the same sizes in a row, and nothing can change it but the model, they buy nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from staticrt import tuning

_VALUES = frozenset({type(None), bool, int, str})


class EagerRun:
    """The calls of one executor that ran eagerly one after another, for one lasting reason.

    Thread safety: several threads may count at once. A lost count only delays what the class is for.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._kind: tuple[Any, ...] | None = None
        self._why = ("", "")

    def reason(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
        """Why this call runs eagerly, and where that began; None: it has to be looked at."""
        if self._calls < tuning.EAGER_RUN_CALLS:
            return None
        self._calls += 1
        # Now and then the model may have changed.
        if self._calls % tuning.EAGER_RUN_CALLS == 0 or _kind(args, kwargs) != self._kind:
            return None
        return self._why

    def ran(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str, where: str) -> None:
        """Note a call that ran eagerly, and that any like it will."""
        kind = _kind(args, kwargs)
        if kind is None or kind != self._kind or (reason, where) != self._why:
            self._calls, self._kind, self._why = 0, kind, (reason, where)
        self._calls += 1


def _kind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Facts of plain tensors, and values; None where there are other arguments."""
    kind: list[Any] = [torch.is_grad_enabled(), len(args), *kwargs]
    for value in (*args, *kwargs.values()):
        if type(value) is torch.Tensor:
            kind += (value.shape, value.dtype, value.device, value.requires_grad)
        elif type(value) in _VALUES:
            kind += (type(value), value)
        else:
            return None
    return tuple(kind)
