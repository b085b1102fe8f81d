"""What the dispatcher's schema says of an operator, so that no declaration repeats it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from staticrt.ops.facts import Alias


def holds_tensor(kind: Any) -> bool:
    """Whether a schema type is Tensor, Tensor?, Tensor[] or Tensor?[]."""
    return "Tensor" in str(kind)


@dataclass(frozen=True)
class SchemaFacts:
    """Aliases and writes as annotated; `random` by tag; `functional`: returns values, writes none."""

    arg_names: tuple[str, ...]
    tensor_args: tuple[int, ...]
    tensor_returns: tuple[int, ...]
    aliases: tuple[Alias, ...]
    mutates: tuple[int, ...]
    random: bool
    functional: bool


def _letters(info: Any) -> set[str]:
    if info is None:
        return set()
    return {str(letter).rpartition("::")[2] for letter in (*info.before_set, *info.after_set)}


@functools.cache
def read_schema(op: torch._ops.OpOverload) -> SchemaFacts:
    """Facts of the schema of `op`.

    An annotation names the storage as a set of letters: `Tensor(a) self -> Tensor(a)`; `(a!)` writes it;
    `(a -> *)` says that the results are containers of views, as those of `split` are.
    """
    schema = op._schema
    arguments: Sequence[Any] = schema.arguments
    returns: Sequence[Any] = schema.returns
    aliases = []
    for output, value in enumerate(returns):
        named = _letters(value.alias_info)
        is_list = str(value.type) == "List[Tensor]"
        for arg, argument in enumerate(arguments):
            letters = _letters(argument.alias_info)
            if named & letters or (is_list and "*" in letters):
                aliases.append(Alias(output, arg, may=False))
    mutates = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    return SchemaFacts(
        arg_names=tuple(a.name for a in arguments),
        tensor_args=tuple(i for i, a in enumerate(arguments) if holds_tensor(a.type)),
        tensor_returns=tuple(i for i, r in enumerate(returns) if holds_tensor(r.type)),
        aliases=tuple(aliases),
        mutates=mutates,
        random=torch.Tag.nondeterministic_seeded in op.tags,
        functional=not schema.is_mutable and len(returns) > 0,
    )


def bind_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """One value per schema argument, in order, defaults filled in.

    Raises:
        TypeError: an argument is missing or unknown.
    """
    arguments = op._schema.arguments
    if len(args) > len(arguments):
        raise TypeError(f"{op}: takes {len(arguments)} arguments, got {len(args)}")
    bound = list(args)
    used = 0
    for argument in arguments[len(args) :]:
        if argument.name in kwargs:
            bound.append(kwargs[argument.name])
            used += 1
        elif argument.has_default_value():
            bound.append(argument.default_value)
        else:
            raise TypeError(f"{op}: argument {argument.name!r} is missing")
    if used != len(kwargs):
        known = {a.name for a in arguments[len(args) :]}
        raise TypeError(f"{op}: unknown argument {sorted(set(kwargs) - known)[0]!r}")
    return bound
