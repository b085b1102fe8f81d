"""Which function computes which ONNX operator, from which version on.

A builder is a Python function over torch operators, registered with `op`. Its signature is its declaration:
positional parameters are the operator's inputs, keyword-only ones its attributes (with ONNX's defaults). An
input annotated `Tensor` arrives as a tensor, one annotated `Numbers` as numbers known at capture, `Value` as it
is; a keyword `call` gets the `Call`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from staticrt.onnx.numbers import Numbers, as_numbers, as_tensor

Builder = Callable[..., Any]
F = TypeVar("F", bound=Builder)


@dataclasses.dataclass(frozen=True)
class Call:
    """What a builder may ask about the node it computes.

    Args:
        opset: version of the operator set that the node is written in.
        outputs: names of its outputs, "" for one that is not wanted.
        scope: names visible to its sub-graphs.
    """

    opset: int
    outputs: tuple[str, ...]
    scope: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Operator:
    """A registered builder.

    Args:
        since: first operator-set version it holds for.
        kinds: per positional input, "tensor", "numbers" or "value".
        rest: the kind of further inputs, or None.
        required: how many inputs must be there.
        attributes: names it takes.
        host: computes the node on numbers alone, or None.
        pure: same inputs, same outputs.
        lackable: positions before the last required input that may be left out all the same.
    """

    name: str
    domain: str
    since: int
    function: Builder
    kinds: tuple[str, ...]
    rest: str | None
    required: int
    attributes: frozenset[str]
    wants_call: bool
    host: Builder | None
    pure: bool
    lackable: frozenset[int] = frozenset()

    def kind(self, index: int) -> str:
        """How input `index` arrives."""
        return self.kinds[index] if index < len(self.kinds) else self.rest or "tensor"

    def run(self, inputs: list[Any], attributes: dict[str, Any], call: Call) -> Any:
        """The node's output, or a tuple of them."""
        if self.host is not None and all(value is None or isinstance(value, Numbers) for value in inputs):
            found = self.host(*inputs, **attributes)
            if found is not NotImplemented:
                return found
        converted = [_CONVERT[self.kind(index)](value) for index, value in enumerate(inputs)]
        if self.wants_call:
            return self.function(*converted, call=call, **attributes)
        return self.function(*converted, **attributes)

    def __reduce__(self) -> Any:
        """Copies and pickles name a registered operator; only functions' bodies travel themselves."""
        if any(self is other for other in _REGISTRY.get((self.domain, self.name), ())):
            return _registered, (self.domain, self.name, self.since)
        return Operator, tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def _registered(domain: str, name: str, since: int) -> Operator:
    found = find(domain, name, since)
    if found is None or found.since != since:
        raise AssertionError(f"{domain}.{name} version {since} is not registered")
    return found


def _same(value: Any) -> Any:
    return value


_CONVERT: dict[str, Callable[[Any], Any]] = {"tensor": as_tensor, "numbers": as_numbers, "value": _same}
_REGISTRY: dict[tuple[str, str], list[Operator]] = {}


def op(
    *names: str, since: int = 1, domain: str = "", host: Builder | None = None, pure: bool = True
) -> Callable[[F], F]:
    """Register a builder for operators from version `since` on."""

    def register(function: F) -> F:
        for name in names:
            operator = _declare(function, name, domain, since, host, pure)
            versions = _REGISTRY.setdefault((domain, name), [])
            if any(other.since == since for other in versions):
                raise AssertionError(f"{domain}.{name} version {since} is registered twice")
            versions.append(operator)
            versions.sort(key=lambda other: other.since)
        return function

    return register


def _declare(
    function: Builder, name: str, domain: str, since: int, host: Builder | None, pure: bool
) -> Operator:
    kinds: list[str] = []
    lackable: set[int] = set()
    rest, required, attributes, wants_call = None, 0, set(), False
    for parameter in inspect.signature(function).parameters.values():
        kind = "value"
        for word in ("Tensor", "Numbers"):
            if word in str(parameter.annotation):
                kind = word.lower()
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = kind
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.name == "call":
                wants_call = True
            else:
                attributes.add(parameter.name)
        else:
            kinds.append(kind)
            required += parameter.default is parameter.empty
            if parameter.default is parameter.empty and "None" in str(parameter.annotation):
                lackable.add(len(kinds) - 1)
    return Operator(
        name, domain, since, function, tuple(kinds), rest, required, frozenset(attributes), wants_call, host, pure,
        frozenset(lackable),
    )  # fmt: skip


def find(domain: str, name: str, version: int) -> Operator | None:
    """The builder of an operator in a version of its operator set, or None."""
    _load()
    best = None
    for operator in _REGISTRY.get((domain, name), ()):
        if operator.since <= version:
            best = operator
    return best


def supported() -> list[tuple[str, str, int]]:
    """Every (domain, operator, first version) that has a builder."""
    _load()
    return sorted((o.domain, o.name, o.since) for versions in _REGISTRY.values() for o in versions)


def _load() -> None:
    from staticrt.onnx import operators

    operators.load()
