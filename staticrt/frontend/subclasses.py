"""Flattens tensor subclasses among a graph's inputs into the tensors that they wrap: quantised weights, DTensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from staticrt.frontend.graph import KnownInputs


class Unwrapped:
    """A function of plain tensors that does what `function` does with subclasses of them.

    Source: the protocol `__tensor_flatten__` and `__tensor_unflatten__` of torch.utils._python_dispatch.

    Args:
        function: called with as many arguments as `inputs`.
        inputs: examples; what a subclass holds beside tensors, and its sizes, are the same in every call.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
        self._function = function
        self._parts = [_Part(value) if is_traceable_wrapper_subclass(value) else None for value in inputs]

    @staticmethod
    def serves(inputs: Sequence[Any], known: KnownInputs) -> bool:
        """Whether some inputs are subclasses, all of them with constant sizes."""
        wrapped = [i for i, value in enumerate(inputs) if is_traceable_wrapper_subclass(value)]
        return bool(wrapped) and all(all(known.constant_sizes.get(i, (False,))) for i in wrapped)

    def known(self, inputs: Sequence[Any], known: KnownInputs) -> KnownInputs:
        """The facts in `known` about the inputs, as facts about the tensors inside."""
        symbolic: set[int] = set()
        weights: set[int] = set()
        sizes: dict[int, tuple[bool, ...]] = {}
        at = 0
        for index, (part, value) in enumerate(zip(self._parts, inputs, strict=True)):
            inner: list[Any] = [value]
            if part is None:
                if index in known.symbolic_ints:
                    symbolic.add(at)
                if index in known.constant_sizes:
                    sizes[at] = known.constant_sizes[index]
            else:
                inner.clear()
                part.take_apart(value, inner)
                # Beside tensors a DTensor has its mesh there.
                tensors = [(i, item) for i, item in enumerate(inner) if isinstance(item, torch.Tensor)]
                sizes.update({at + i: (True,) * tensor.dim() for i, tensor in tensors})
            if index in known.weights:
                weights.update(range(at, at + len(inner)))
            at += len(inner)
        return KnownInputs(frozenset(symbolic), frozenset(weights), sizes)

    def take_apart(self, values: Sequence[Any]) -> list[Any]:
        """The arguments of a call with these values."""
        flat: list[Any] = []
        for part, value in zip(self._parts, values, strict=True):
            if part is None:
                flat.append(value)
            else:
                part.take_apart(value, flat)
        return flat

    def __call__(self, *flat: Any) -> Any:
        rest = iter(flat)
        values = [next(rest) if part is None else part.put_together(rest) for part in self._parts]
        return self._function(*values)


class _Part:
    """How one subclass is made; tensors that it wraps may be subclasses themselves."""

    def __init__(self, value: Any) -> None:
        self._type = type(value)
        self._names, self._context = value.__tensor_flatten__()
        self._size, self._stride = value.size(), value.stride()
        inner = [getattr(value, name) for name in self._names]
        self._parts = [_Part(item) if is_traceable_wrapper_subclass(item) else None for item in inner]

    def take_apart(self, value: Any, flat: list[Any]) -> None:
        for name, part in zip(self._names, self._parts, strict=True):
            inner = getattr(value, name)
            if part is None:
                flat.append(inner)
            else:
                part.take_apart(inner, flat)

    def put_together(self, rest: Any) -> torch.Tensor:
        inner = {
            name: next(rest) if part is None else part.put_together(rest)
            for name, part in zip(self._names, self._parts, strict=True)
        }
        made: torch.Tensor = self._type.__tensor_unflatten__(inner, self._context, self._size, self._stride)
        return made
