"""Integers that a model computes of sizes by operators of tensors: `torch.div(n, 2, rounding_mode="trunc")`.

Such a tensor has one element. Where the model takes a number of it, for a size or a range, it is the same expression of
sizes that Python's operators would have given, and not a number that data decides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten
_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
    aten.div.Tensor_mode: operator.floordiv,
}


class SizeTensors:
    """The tensors of one trace that hold such an integer."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, torch.SymInt]] = {}

    def keep(self, tensor: torch.Tensor, number: torch.SymInt) -> None:
        """`tensor`, of int64, holds `number`."""
        self._known[id(tensor)] = tensor, number

    def number_of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.SymInt | None:
        """The number, an expression of sizes, that a call returns or whose tensor it returns; None: it does neither."""
        if func._schema.is_mutable:
            self._known.clear()  # a tensor of them may share the memory that is written
        if func is aten._local_scalar_dense.default:
            return self._known.get(id(args[0]), (None, None))[1]
        if func not in _OPERATORS or len(args) != 2 or set(kwargs) - {"rounding_mode"}:
            return None
        a, b = map(self._integer, args)
        if not (isinstance(a, torch.SymInt) and b is not None) and not (
            isinstance(b, torch.SymInt) and a is not None
        ):
            return None
        # Of others, quotients that are rounded to zero are not Python's.
        if func is aten.div.Tensor_mode and not (a >= 0 and b > 0 and kwargs.get("rounding_mode")):
            return None
        number = _OPERATORS[func](a, b)
        return number if isinstance(number, torch.SymInt) else None

    def _integer(self, value: Any) -> Any:
        if type(value) is int or isinstance(value, torch.SymInt):
            return value
        return self._known.get(id(value), (None, None))[1]
