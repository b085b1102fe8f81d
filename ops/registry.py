"""The one registry of op facts: `register_op` declares, `facts` asks.

A declaration names an overload ("aten.add.Tensor") or all overloads of an op ("aten.add"); the
narrower one wins. What the dispatcher's schema says (aliases, writes, randomness) is read from it and
never declared again. An in-place or `.out` overload takes its cost from its functional
twin; an undeclared op gets facts that are safe for any op.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from staticrt.errors import OptionError
from staticrt.ops.facts import Alias, Cost, OpFacts
from staticrt.ops.schema import SchemaFacts, bind_arguments, read_schema


class _Declaration(NamedTuple):
    family: str
    aliases: tuple[str, ...]
    may_alias: tuple[str, ...]
    writes: tuple[str, ...]
    pure: bool | None
    random: bool | None
    idle_when: tuple[tuple[str, object], ...]
    cost: Cost
    fusable: bool


_declared: dict[str, _Declaration] = {}
# By identity: torch hashes its operators in Python. The target is kept, so that no other takes its place.
_resolved: dict[int, tuple[object, OpFacts]] = {}
_idle: dict[int, OpFacts] = {}  # of calls that do nothing; `_resolved` keeps their targets


def register_op(
    name: str,
    *,
    family: str = "user",
    aliases: Sequence[str] = (),
    may_alias: Sequence[str] = (),
    writes: Sequence[str] = (),
    pure: bool | None = None,
    random: bool | None = None,
    idle_when: Mapping[str, object] | None = None,
    cost: Cost = Cost.OTHER,
    fusable: bool = False,
) -> None:
    """Declare what the schema of an op does not say.

    Args:
        name: an overload, "aten.add.Tensor", or an op, "aten.add", for all its overloads.
        family: what kind of op; the built-in ones name their file in `ops/`.
        aliases: arguments that every result views although the schema does not say so.
        may_alias: arguments that a result may share storage with, or may not, depending on the call.
            They widen the schema's annotation or, where it has one, turn "views" into "may view".
        writes: arguments that the op writes although the schema does not say so.
        pure: False keeps calls whose results have no readers. Default: true for a functional schema.
        random: whether it draws from a generator. Default: the schema's tag.
        idle_when, cost, fusable: see `OpFacts`.

    Raises:
        OptionError: the name is registered already, or is not of the form "namespace.op[.overload]".
    """
    parts = name.split(".")
    if len(parts) not in (2, 3) or not all(parts):
        raise OptionError(
            f"cannot register op {name!r}: not of the form namespace.op or namespace.op.overload",
            fix='write for example "aten.add.Tensor", or "mylib.myop" for all its overloads',
        )
    if name in _declared:
        raise OptionError(
            f"op {name!r} is registered twice: by family {_declared[name].family!r} and by {family!r}",
            fix="declare each op once; an overload may be declared besides its op",
        )
    _declared[name] = _Declaration(
        family=family,
        aliases=tuple(aliases),
        may_alias=tuple(may_alias),
        writes=tuple(writes),
        pure=pure,
        random=random,
        idle_when=tuple((idle_when or {}).items()),
        cost=cost,
        fusable=fusable,
    )
    _resolved.clear()
    _idle.clear()


def register_ops(family: str, names: str, *, namespace: str = "aten", **declared: Any) -> None:
    """Declare several ops of one family alike.

    Args:
        names: without the namespace, separated by white space; each an op or an overload ("max.other").
        declared: the other arguments of `register_op`.

    Raises:
        OptionError: as `register_op`.
    """
    for name in names.split():
        register_op(f"{namespace}.{name}", family=family, **declared)


def op_name(target: object) -> str:
    """Name of a call target: "aten.add.Tensor", "higher_order.cond", "operator.add", "torch.sym_float"."""
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        name = target.name()  # type: ignore[no-untyped-call]
        return f"higher_order.{name}"
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    function = getattr(target, "__name__", type(target).__name__)
    return f"{'operator' if module == '_operator' else module}.{function}"


def facts(target: object) -> OpFacts:
    """Facts of a call target: an OpOverload, a higher-order operator or a Python function.

    Raises:
        OptionError: a declaration names an argument that the op does not have.
    """
    known = _resolved.get(id(target))
    if known is None:
        if isinstance(target, OpOverload):
            found = _overload_facts(target)
        elif isinstance(target, (HigherOrderOperator, types.BuiltinFunctionType, types.FunctionType)):
            found = _function_facts(target)
        else:
            found = OpFacts(op_name(target))
        known = _resolved[id(target)] = (target, found)
    return known[1]


def facts_of_call(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpFacts:
    """Facts of one call: as `facts`, but a call that its literal arguments make idle is pure.

    Dropout with train=False, attention with dropout_p=0.0, batch norm with training=False.
    """
    general = facts(target)
    if not general.idle_when or not isinstance(target, OpOverload):
        return general
    names = [argument.name for argument in target._schema.arguments]
    try:
        bound = dict(zip(names, bind_arguments(target, args, kwargs), strict=True))
    except TypeError:
        return general
    for name, value in general.idle_when:
        given = bound.get(name)
        # A graph node in the argument's place is a number known only at run time.
        if isinstance(given, (bool, int, float)) and given == value:
            if id(target) not in _idle:
                mutates = read_schema(target).mutates
                _idle[id(target)] = replace(general, random=False, mutates=mutates, pure=True, idle_when=())
            return _idle[id(target)]
    return general


def draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    tagged = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return tagged and facts_of_call(node.target, node.args, node.kwargs).random


def _function_facts(target: Callable[..., Any] | HigherOrderOperator) -> OpFacts:
    name = op_name(target)
    declared = _declared.get(name)
    if declared is None:
        return OpFacts(name)
    return OpFacts(
        name,
        known=True,
        family=declared.family,
        pure=declared.pure is not False,
        random=bool(declared.random),
        idle_when=declared.idle_when,
        cost=declared.cost,
        fusable=declared.fusable,
    )


def _overload_facts(op: OpOverload) -> OpFacts:
    name = str(op)
    base = name.rsplit(".", 1)[0]
    schema = read_schema(op)
    declared = _declared.get(name) or _declared.get(base)
    if declared is None:
        return _undeclared_facts(op, name, schema)
    random = schema.random if declared.random is None else declared.random
    functional = schema.functional if declared.pure is None else declared.pure
    mutates = tuple(sorted({*schema.mutates, *_positions(op, schema, declared.writes)}))
    return OpFacts(
        name,
        known=True,
        family=declared.family,
        aliases=_aliases(op, schema, declared),
        mutates=mutates,
        pure=functional and not random and not mutates,
        random=random,
        idle_when=declared.idle_when,
        cost=declared.cost,
        # An op that writes an argument stores its result there, so it joins no loop over fresh elements.
        fusable=declared.fusable and not schema.mutates,
    )


def _undeclared_facts(op: OpOverload, name: str, schema: SchemaFacts) -> OpFacts:
    twin = _functional_twin(op, name, schema)
    if twin is not None:
        return OpFacts(
            name,
            known=True,
            family=twin.family,
            aliases=schema.aliases,
            mutates=schema.mutates,
            random=schema.random or bool(twin.random),
            cost=twin.cost,
        )
    # The annotations of an unknown op may be incomplete, so any result may alias any argument. Only for
    # `aten` does a functional schema guarantee that there is no other effect.
    vouched = {(alias.output, alias.arg) for alias in schema.aliases}
    guesses = tuple(
        Alias(output, arg, may=True)
        for output in schema.tensor_returns
        for arg in schema.tensor_args
        if (output, arg) not in vouched
    )
    return OpFacts(
        name,
        aliases=schema.aliases + guesses,
        mutates=schema.mutates,
        pure=op.namespace == "aten" and schema.functional and not schema.random,
        random=schema.random,
    )


def _functional_twin(op: OpOverload, name: str, schema: SchemaFacts) -> _Declaration | None:
    """Declaration of `aten.add` for `aten.add_.Tensor`, which writes its first argument in place."""
    namespace, base, overload = name.split(".", 2)
    if not base.endswith("_") or schema.mutates != (0,):
        return None
    base = base[:-1]
    return _declared.get(f"{namespace}.{base}.{overload}") or _declared.get(f"{namespace}.{base}")


def _positions(op: OpOverload, schema: SchemaFacts, names: Sequence[str]) -> tuple[int, ...]:
    """Positions of named arguments; for a declaration of several overloads, of those this one has."""
    if not any(n in schema.arg_names for n in names) and names and str(op) in _declared:
        raise OptionError(
            f"op {str(op)!r} is declared with arguments {list(names)}, but has {list(schema.arg_names)}",
            fix="use the names of the op's schema",
        )
    return tuple(
        schema.arg_names.index(n)
        for n in names
        if n in schema.arg_names and schema.arg_names.index(n) in schema.tensor_args
    )


def _aliases(op: OpOverload, schema: SchemaFacts, declared: _Declaration) -> tuple[Alias, ...]:
    may = set(_positions(op, schema, declared.may_alias))
    sure = _positions(op, schema, declared.aliases)
    found = {
        (alias.output, alias.arg): alias.may or (alias.arg in may and alias.arg not in schema.mutates)
        for alias in schema.aliases
    }
    for output in schema.tensor_returns:
        for arg in (*sure, *sorted(may)):
            found.setdefault((output, arg), arg in may)
    return tuple(Alias(output, arg, flag) for (output, arg), flag in sorted(found.items()))
