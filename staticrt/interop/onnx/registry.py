"""The registry of builders: the function that computes an ONNX operator, by version.

A builder is a Python function over torch operators, registered with `op`. Its signature is its declaration:
positional parameters are the operator's inputs, keyword-only ones its attributes (with ONNX's defaults). An
input without an annotation or annotated `Tensor` arrives as a tensor, one annotated `Numbers` as numbers known at trace time,
`Value` unchanged; a keyword `call` gets the `Call`. `**keywords` stands for the attributes of another builder, `like`. Builders with
`prepare` get one keyword `prepared`: what that function made of the attributes when the model was imported.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Numbers, as_numbers, as_tensor
from staticrt.interop.onnx.strings import Strings, Vocabulary

Builder = Callable[..., Any]
F = TypeVar("F", bound=Builder)


@dataclasses.dataclass(frozen=True)
class Call:
    """Facts about a node for its builder.

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
        omittable: positions before the last required input that may be left out.
        prepare: makes `prepared` of a vocabulary and the attributes, whose names and defaults it declares.
        strings: what becomes of inputs of strings. "no": an error; "moves": computed on their numbers, and the result
            is strings again; "compares": computed on their numbers; "reads": the builder knows `Strings`.
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
    omittable: frozenset[int] = frozenset()
    prepare: Builder | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    strings: str = "no"

    def kind(self, index: int) -> str:
        """The form in which the builder takes input `index`."""
        return self.kinds[index] if index < len(self.kinds) else self.rest or "tensor"

    def run(self, inputs: list[Any], attributes: dict[str, Any], call: Call) -> Any:
        """The node's output, or a tuple of them."""
        if self.host is not None and all(value is None or isinstance(value, Numbers) for value in inputs):
            found = self.host(*inputs, **attributes)
            if found is not NotImplemented:
                return found
        texts = self.strings != "reads" and any(isinstance(value, Strings) for value in inputs)
        if texts:
            inputs = self._codes(inputs)
        converted = [_CONVERT[self.kind(index)](value) for index, value in enumerate(inputs)]
        if self.wants_call:
            attributes = {**attributes, "call": call}
        found = self.function(*converted, **attributes)
        if not texts or self.strings == "compares":
            return found
        return tuple(map(Strings, found)) if isinstance(found, tuple) else Strings(found)

    def _codes(self, inputs: list[Any]) -> list[Any]:
        """Inputs with the numbers of strings in their place."""
        if self.strings == "no":
            raise OnnxError(
                f"{self.name} of strings is not supported",
                fix="compute this part of the model before the call, and pass its result",
            )
        return [value.codes if isinstance(value, Strings) else value for value in inputs]

    def prepared(self, vocabulary: Vocabulary, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """A node's attributes in the form that the builder expects."""
        if self.prepare is None:
            return dict(attributes)
        return {"prepared": self.prepare(vocabulary, **{**self.defaults, **attributes})}

    def __reduce__(self) -> Any:
        """Pickle a registered operator by its name, and a function with its body."""
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


# Operators of ONNX that accept strings, because they only move elements or read sizes.
_MOVES = frozenset([
    "Compress", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Reshape", "Slice",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
])  # fmt: skip
_READS = frozenset(["Identity", "Shape", "Size"])


def _of_strings(domain: str, name: str) -> str:
    if domain:
        return "no"
    return (
        "moves" if name in _MOVES else "reads" if name in _READS else "compares" if name == "Equal" else "no"
    )


_CONVERT: dict[str, Callable[[Any], Any]] = {"tensor": as_tensor, "numbers": as_numbers, "value": _same}
_REGISTRY: dict[tuple[str, str], list[Operator]] = {}


def op(
    *names: str,
    since: int = 1,
    domain: str = "",
    host: Builder | None = None,
    pure: bool = True,
    prepare: Builder | None = None,
    prepared: Mapping[str, Any] | None = None,
    strings: str | None = None,
    like: Builder | None = None,
) -> Callable[[F], F]:
    """Register a builder for an operator from version `since` on. `prepared`: further attributes of `prepare` that are not in
    its signature, with their defaults."""

    def register(function: F) -> F:
        for name in names:
            operator = _declare(
                function, name, domain, since, host, pure, strings or _of_strings(domain, name), like
            )
            if prepare is not None:
                operator = _with_preparation(operator, prepare, prepared or {})
            versions = _REGISTRY.setdefault((domain, name), [])
            if any(other.since == since for other in versions):
                raise AssertionError(f"{domain}.{name} version {since} is registered twice")
            versions.append(operator)
            versions.sort(key=lambda other: other.since)
        return function

    return register


def _declare(
    function: Builder, name: str, domain: str, since: int, host: Builder | None, pure: bool, strings: str,
    like: Builder | None,
) -> Operator:  # fmt: skip
    kinds: list[str] = []
    omittable: set[int] = set()
    rest, required, wants_call = None, 0, False
    attributes = set() if like is None else set(_keywords(like))
    for parameter in inspect.signature(function).parameters.values():
        declared = "Tensor" if parameter.annotation is parameter.empty else str(parameter.annotation)
        kind = next((word.lower() for word in ("Numbers", "Tensor") if word in declared), "value")
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = kind
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.name == "call":
                wants_call = True
            else:
                attributes.add(parameter.name)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            kinds.append(kind)
            required += parameter.default is parameter.empty
            if parameter.default is parameter.empty and "None" in str(parameter.annotation):
                omittable.add(len(kinds) - 1)
    return Operator(
        name, domain, since, function, tuple(kinds), rest, required, frozenset(attributes), wants_call, host, pure,
        frozenset(omittable), strings=strings,
    )  # fmt: skip


def _with_preparation(operator: Operator, prepare: Builder, more: Mapping[str, Any]) -> Operator:
    return dataclasses.replace(
        operator,
        prepare=prepare,
        defaults=dict(more),
        attributes=frozenset([*_keywords(prepare), *more]),
        pure=False,
    )


def _keywords(function: Builder) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]


def find(domain: str, name: str, version: int) -> Operator | None:
    """The builder of an operator in a version of its operator set, or None; `operators.load` registers all."""
    best = None
    for operator in _REGISTRY.get((domain, name), ()):
        if operator.since <= version:
            best = operator
    return best
