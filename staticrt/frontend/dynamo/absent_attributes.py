"""Attributes that are not there: Dynamo guards neither `except AttributeError` nor `name in vars(x)`. What a model makes in its
first call and keeps would be made in each call."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo, once per process: graphs for us depend on which attributes objects have, where code asks."""
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import (  # type: ignore[attr-defined]
        UnspecializedNNModuleVariable,
        UserDefinedObjectVariable,
        UserFunctionVariable,
        dicts,
    )

    functions: Any = UserFunctionVariable
    kinds: list[Any] = [UserDefinedObjectVariable, UnspecializedNNModuleVariable, functions]
    for kind in kinds:
        kind.var_getattr = _guarding_absence(kind.var_getattr)
    functions.call_obj_hasattr = _guarding_question(functions.call_obj_hasattr)
    attributes: Any = getattr(dicts, "SideEffectsProxyDict", None)
    # torch 2.11 has neither.
    if attributes is not None and hasattr(GuardBuilder, "DICT_NOT_CONTAINS"):
        for name in ("__contains__", "__getitem__"):
            setattr(attributes, name, _guarding_membership(getattr(attributes, name)))


def _guarding_absence(read: Any) -> Any:
    from torch._dynamo.exc import ObservedAttributeError

    @functools.wraps(read)
    def guarded(self: Any, tx: Any, name: str) -> Any:
        try:
            return read(self, tx, name)
        except ObservedAttributeError:
            _guard(self, tx, name)
            raise

    return guarded


def _guarding_question(ask: Any) -> Any:
    @functools.wraps(ask)
    def guarded(self: Any, tx: Any, name: str) -> Any:
        _guard(self, tx, name)
        return ask(self, tx, name)

    return guarded


def _guard(variable: Any, tx: Any, name: str) -> None:
    """Let the graph depend on whether an object has an attribute, unless its class computes that: guards must run no code."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource

    is_function = hasattr(variable, "fn")
    source = variable.get_source() if hasattr(variable, "get_source") else variable.source
    kind = type(variable.fn if is_function else variable.value)
    given = inspect.getattr_static(kind, name, None)
    computes = inspect.getattr_static(kind, "__getattr__", None) not in (None, torch.nn.Module.__getattr__)
    if source is None or not is_for_us(tx.output) or computes:
        return
    if given is None or isinstance(given, types.MemberDescriptorType):
        if "attr" in inspect.signature(GuardBuilder.HASATTR).parameters:
            install_guard(source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))
        else:  # torch 2.11
            install_guard(AttrSource(source, name).make_guard(GuardBuilder.HASATTR))


def _guarding_membership(look_up: Any) -> Any:
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource
    from torch._dynamo.symbolic_convert import InstructionTranslator

    @functools.wraps(look_up)
    def guarded(self: Any, key: Any) -> Any:
        source = self.item.source
        if source is not None and is_for_us(InstructionTranslator.current_tx().output):
            name = self._maybe_unwrap_key(key)
            holds = GuardBuilder.DICT_CONTAINS if name in self.item_dict else GuardBuilder.DICT_NOT_CONTAINS
            found = AttrSource(source, "__dict__").make_guard(functools.partial(holds, key=name))
            install_guard(found)
        return look_up(self, key)

    return guarded
