"""What numpy does on floating-point errors (`np.seterr`), and how it prints: its functions read that without a visible call."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from staticrt.frontend.guards.records import Compared


class NumpyErrorsRecord(Compared):
    """The treatment of each kind of error, the function called for them and the options of texts, in the current context."""

    part = "answers"

    def __init__(self) -> None:
        self.saved = _content()
        self._options = sys.modules["numpy"].get_printoptions()

    @property
    def has_effect(self) -> bool:
        """Whether an error in arithmetic raises or calls a function."""
        return any(how in ("raise", "call", "log") for _kind, how in self.saved[:-2])

    def changes(self) -> Iterable[str]:
        return () if _content() == self.saved else ["numpy.geterr(), or numpy.get_printoptions()"]

    def restore(self) -> None:
        now = _content()
        if now != self.saved:
            numpy = sys.modules["numpy"]
            *kinds, printing, function = self.saved
            if now[-1] is not function:
                numpy.seterrcall(function)
            numpy.seterr(**dict(kinds))
            if now[-2] != printing:
                numpy.set_printoptions(**self._options)

    def entry(self) -> tuple[Any, ...]:
        return _content, self.saved


def _content() -> tuple[Any, ...]:
    numpy = sys.modules["numpy"]
    printing = tuple(numpy.get_printoptions().values())
    return (*sorted(numpy.geterr().items()), printing, numpy.geterrcall())
