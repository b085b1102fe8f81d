"""Eager calls of a compiled callable: counted by their reasons, and repeated without a look at their arguments.

To flatten a call and find the state of its key costs some microseconds. Where many calls of the same sizes in a row ran
eagerly, and only a change of the model could make the next one run compiled, that work is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from staticrt import tuning
from staticrt.runtime.eager_calls import eager_call, nobody_watches

_VALUES = frozenset({type(None), bool, int, str})


class EagerCalls:
    """The calls of one compiled callable that ran eagerly.

    Thread safety: several threads may count at once. A lost count only delays `lasting_reason`.

    Args:
        function: what runs.
        name: for reports.

    Attributes:
        counts: (what, reason, model line) -> calls that ran eagerly.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._function = function
        self._name = name
        self._calls = 0
        self._kind: tuple[Any, ...] | None = None
        self._why = ("", "")

    def run(self, args: Any, kwargs: Any, reason: str, where: str = "") -> Any:
        """The result of a call that runs eagerly."""
        self.counts["call", reason, where] += 1
        if nobody_watches():  # a context manager costs more than a small function
            return self._function(*args, **kwargs)
        with eager_call(self._name, reason, where):
            return self._function(*args, **kwargs)

    def lasting_reason(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
        """The reason and model line why this call runs eagerly like many before it; None: that has to be found out."""
        if self._calls < tuning.EAGER_RUN_CALLS:
            return None
        self._calls += 1
        # Now and then the model may have changed.
        is_due = self._calls % tuning.EAGER_LOOK_CALLS == 0 or self._calls & (self._calls - 1) == 0
        if is_due or _kind(args, kwargs) != self._kind:
            return None
        return self._why

    def will_last(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str, where: str) -> None:
        """Note that a call ran eagerly for a reason that holds for every call like it."""
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
