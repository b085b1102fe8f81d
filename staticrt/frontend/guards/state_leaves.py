"""Values from which no mutable state is reachable."""

from __future__ import annotations

import re
import types
from typing import Any

import torch

# No mutable state is reachable from values of exactly these types, or from instances of the second group.
_PLAIN: frozenset[type] = frozenset(
    (
        *(str, bytes, int, float, complex, bool, type(None), slice, range, re.Pattern),
        *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType),
    )
)
# Operators have caches of their own.
_OWN_STATE: tuple[type, ...] = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator, torch.Size,
    torch._ops.OperatorBase, torch._ops.OpOverloadPacket, torch._library.custom_ops.CustomOpDef,
)  # fmt: skip
_leaf_types: dict[type, bool] = {}
HEAP_TYPE = 1 << 9  # in `type.__flags__`: not of C, so its attributes and its objects' class can change


def is_leaf(value: Any) -> bool:
    """Whether no mutable state is reachable from a value."""
    kind = type(value)
    known = _leaf_types.get(kind)
    if known is None:
        known = kind in _PLAIN or issubclass(kind, _OWN_STATE)
        if not kind.__flags__ & HEAP_TYPE:  # a class of Python's would never go
            _leaf_types[kind] = known
    return known


def is_read_by_name(kind: type, attributes: dict[str, Any]) -> bool:
    """Whether only Python code, which names them, reads these attributes of an object of this class.

    C code reads those of its own objects (`__wrapped__` of `functools.lru_cache`) and special names (`__array_interface__`).
    The names in torch's code outside of its layers (`torch.ao`) are not known.
    """
    return all(map(_is_read_by_name, kind.__mro__[:-1])) and not any(
        str(key).startswith("__") for key in attributes
    )


def _is_read_by_name(kind: type) -> bool:
    own = vars(kind)
    package = kind.__module__.split(".")
    if package[0] == "torch" and package[1:2] not in (["nn"], ["distributions"]):
        return False
    return "__slots__" in own or "__annotations__" in own or types.FunctionType in map(type, own.values())
