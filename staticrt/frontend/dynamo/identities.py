"""Which object an argument is: Dynamo compares objects (`a is b`, `a in table`) and makes text of them while it compiles, and guards
only their class."""

from __future__ import annotations

import functools
from typing import Any

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo, once per process: graphs for us depend on the identities of objects that code compares, hashes or shows."""
    from torch._dynamo.variables import (  # type: ignore[attr-defined]
        UserDefinedObjectVariable,
        builder,
        builtin,
        object_protocol,
    )

    if not hasattr(object_protocol, "vt_identity_compare"):  # torch 2.11
        return
    compare = object_protocol.vt_identity_compare

    @functools.wraps(compare)
    def compared(left: Any, right: Any) -> Any:
        operands = [each.realize() if hasattr(each, "realize") else each for each in (left, right)]
        if all(isinstance(each, UserDefinedObjectVariable) for each in operands):
            for each in operands:
                _guard(each.source)
        return compare(left, right)

    tables: Any = builder
    upstream = tables.make_dupe_guard

    @functools.wraps(upstream)
    def one_by_two_sources(source: Any, other: Any) -> Any:
        found = upstream(source, other)
        if found is None and source and other and source.name != other.name:  # a global and an argument
            _guard(source)
            _guard(other)
        return found

    tables.make_dupe_guard = one_by_two_sources
    modules: list[Any] = [builtin, object_protocol]
    for module in modules:
        module.vt_identity_compare = compared
    objects: Any = UserDefinedObjectVariable
    objects.hash_impl = _of_identity(objects.hash_impl, "__hash__")
    objects.repr_impl = _of_identity(objects.repr_impl, "__repr__")


def _of_identity(upstream: Any, name: str) -> Any:
    @functools.wraps(upstream)
    def guarded(self: Any, tx: Any) -> Any:
        if getattr(type(self.value), name) is getattr(object, name):
            _guard(self.source)
        return upstream(self, tx)

    return guarded


def _guard(source: Any) -> None:
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if source is not None and is_for_us(InstructionTranslator.current_tx().output):
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
