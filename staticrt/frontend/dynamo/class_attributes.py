"""Constants in classes, which Dynamo before torch 2.13 reads without a guard: later calls would take the value of the first."""

from __future__ import annotations

import enum
import functools
import inspect
from typing import Any

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo, once per process: graphs for us depend on the constants that they read from classes."""
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables import ConstantVariable, UserDefinedClassVariable  # type: ignore[attr-defined]
    from torch._dynamo.variables.base import VariableTracker

    classes: Any = UserDefinedClassVariable
    read = classes.var_getattr
    if "is_literal" not in read.__code__.co_names:  # later releases guard what they look up
        return

    @functools.wraps(read)
    def read_with_guard(self: Any, tx: Any, name: str) -> Any:
        if self.source is not None and is_for_us(tx.output):
            value = inspect.getattr_static(self.value, name, read)
            if isinstance(value, enum.Enum) or ConstantVariable.is_literal(value):
                return VariableTracker.build(tx, value, AttrSource(self.source, name))
        return read(self, tx, name)

    classes.var_getattr = read_with_guard
