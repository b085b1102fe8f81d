"""Eager calls of a compiled callable: counted by their reasons, and repeated without a look at their arguments.

To flatten a call and find the state of its key costs some microseconds. Where many calls of the same sizes in a row ran
eagerly, and only a change of the model could make the next one run compiled, C++ leaves that work out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from staticrt import tuning
from staticrt.runtime.eager_calls import eager_call, nobody_watches
from staticrt.runtime.fast_call import FastPath
from staticrt.torch_private import hidden_from_dynamo

_VALUES = frozenset({type(None), bool, int, str})


class EagerCalls:
    """The calls of one compiled callable that ran eagerly.

    Thread safety: several threads may count at once. A lost count only delays when calls are left to C++.

    Args:
        function: what runs.
        name: for reports.
        fast: what takes calls first; None where each call needs a look.

    Attributes:
        counts: (what, reason, model line) -> calls that ran eagerly.
    """

    def __init__(self, function: Callable[..., Any], name: str, fast: FastPath | None = None) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._function = function
        self._name = name
        self._fast = fast
        self._calls = 0
        self._kind: tuple[Any, ...] | None = None
        self._why = ("", "", "")

    def run(self, args: Any, kwargs: Any, reason: str, where: str = "") -> Any:
        """The result of a call that runs eagerly."""
        self.counts["call", reason, where] += 1
        if nobody_watches():  # a context manager costs more than a small function
            return self._function(*args, **kwargs)
        with eager_call(self._name, reason, where):
            return self._function(*args, **kwargs)

    def run_as_tried(self, args: Any, kwargs: Any, failed: str, where: str, slower: str, lasts: bool) -> Any:
        """The result of a call that cost trials run eagerly.

        Args:
            args, kwargs: of the call.
            failed, where: why the call runs in parts.
            slower: what the trials found, if they are done.
            lasts: nothing is measured any more.
        """
        result = self.run(args, kwargs, slower or failed, where)
        if lasts:
            self.will_last(args, kwargs, slower or failed, where)
        return result

    @hidden_from_dynamo
    def _run_again(
        self, kind: tuple[Any, ...], why: tuple[str, str, str], /, *args: Any, **kwargs: Any
    ) -> Any:
        self._calls += kind is self._kind  # else calls of another kind ran meanwhile
        if not nobody_watches():
            return self.run(args, kwargs, *why[1:])
        self.counts[why] += 1
        return self._function(*args, **kwargs)

    def will_last(self, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, where: str) -> None:
        """Note that a call ran eagerly for a reason that holds for every call like it."""
        kind = _kind(args, kwargs)
        why = ("call", reason, where)
        if kind is None or (kind, why) != (self._kind, self._why):
            self._calls = 0
        self._calls += 1
        self._kind, self._why = kind, why
        if kind is not None and self._fast is not None and self._calls >= tuning.EAGER_RUN_CALLS:
            # Now and then the model may have changed.
            again = partial(self._run_again, kind, why)
            self._fast.leave_to_eager(again, args, kwargs, min(self._calls, tuning.EAGER_LOOK_CALLS))


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
