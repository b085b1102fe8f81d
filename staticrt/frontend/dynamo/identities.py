"""Which object an argument is: Dynamo compares objects (`a is b`, `a in table`) and makes text of them while it compiles, and guards
only their class."""

from __future__ import annotations

import functools
import operator
from typing import Any

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo, once per process: graphs for us depend on the identities of objects that code compares, hashes or shows."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables import (  # type: ignore[attr-defined]
        BuiltinVariable,
        ConstantVariable,
        SymNodeVariable,
        UserDefinedClassVariable,
        UserDefinedObjectVariable,
        builder,
        builtin,
        object_protocol,
    )

    if not hasattr(object_protocol, "vt_identity_compare"):  # torch 2.11
        return
    compare = object_protocol.vt_identity_compare
    guarded_elsewhere = (ConstantVariable, SymNodeVariable, UserDefinedClassVariable)

    def one(left: Any, right: Any) -> Any:
        """Whether two sources hold one object, with a guard; None where other guards tell."""
        graph = InstructionTranslator.current_tx().output
        operands = [each.realize() if hasattr(each, "realize") else each for each in (left, right)]
        sources = [each.source for each in operands]
        # What two sources hold in the first call has one variable, and a guard.
        if operands[0] is operands[1] or None in sources or not is_for_us(graph):
            return None
        if any(isinstance(each, guarded_elsewhere) for each in operands):
            return None
        first, second = map(graph.resolve_source_value, sources)
        kind = GuardBuilder.DUPLICATE_INPUT if first is second else _differ
        _guard(sources[0], functools.partial(kind, source_b=sources[1]))
        return ConstantVariable.create(first is second)

    @functools.wraps(compare)
    def compared(left: Any, right: Any) -> Any:
        found = compare(left, right)
        told = None if found is None else one(left, right)
        return found if told is None else told

    functions: Any = BuiltinVariable
    compare_tensors = functions._comparison_with_tensor

    @functools.wraps(compare_tensors)
    def tensors_compared(self: Any, tx: Any, left: Any, right: Any) -> Any:
        if self.fn in (operator.is_, operator.is_not):
            one(left, right)  # Dynamo takes two parameters for two in each call
        return compare_tensors(self, tx, left, right)

    functions._comparison_with_tensor = tensors_compared
    functions._binop_handlers.cache_clear()  # of graphs before, for other backends: they hold the method
    functions.call_function_handler_cache.clear()

    tables: Any = builder
    upstream = tables.make_dupe_guard

    @functools.wraps(upstream)
    def one_by_two_sources(source: Any, other: Any) -> Any:
        found = upstream(source, other)
        if found is None and source and other and source.name != other.name:  # a global and an argument
            _guard(source, functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=other))
        return found

    tables.make_dupe_guard = one_by_two_sources
    modules: list[Any] = [builtin, object_protocol]
    for module in modules:
        module.vt_identity_compare = compared
    objects: Any = UserDefinedObjectVariable
    objects.hash_impl = _of_identity(objects.hash_impl, "__hash__")
    objects.repr_impl = _of_identity(objects.repr_impl, "__repr__")


def _of_identity(upstream: Any, name: str) -> Any:
    from torch._dynamo.guards import GuardBuilder

    @functools.wraps(upstream)
    def guarded(self: Any, tx: Any) -> Any:
        if getattr(type(self.value), name) is getattr(object, name):
            _guard(self.source, GuardBuilder.ID_MATCH)
        return upstream(self, tx)

    return guarded


def _differ(guards: Any, guard: Any, source_b: Any) -> None:
    """Guard that two sources hold different objects, whichever they are: other objects in each call compile nothing again."""
    part = f"{guards.arg_ref(guard)} is not {guards.arg_ref(source_b.name)}"
    guards.add_python_lambda_leaf_guard_to_root([part], [part])


def _guard(source: Any, kind: Any) -> None:
    from torch._dynamo.guards import install_guard
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if source is not None and is_for_us(InstructionTranslator.current_tx().output):
        install_guard(source.make_guard(kind))
