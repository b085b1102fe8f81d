"""The traced graph, which the frontend passes to `passes` and lowering.

A `TracedGraph` is functional ATen on an `fx.Graph`:

- Nodes call `OpOverload`s, higher-order operators (`cond`, `while_loop`, `scan`, `map`, with `get_attr` nodes for
  their sub-modules), or Python scalar functions (`operator.*`, `math.*`, `torch.sym_*`) on symbolic sizes.
  Composite operators that neither alias nor write (`linear`, `layer_norm`, `scaled_dot_product_attention`,
  `conv2d`, `lstm` …) stay whole.
- `meta["val"]` of a node is its fake value: a fake tensor, a tuple of them, or a symbolic number.
- Placeholders follow `inputs`: parameters, buffers and lifted constants first, then the caller's leaves.
- Writes are explicit: after the functional part, `aten.copy_.default(placeholder, value)` nodes write back what
  eager would have written into a parameter, buffer, constant or the caller's tensor. Nothing else writes.
- The output node holds one flat tuple. An entry is a node or a Python constant. An entry that is a placeholder is
  that tensor itself, and one that reaches a placeholder through view operators aliases it, exactly as in eager.
  The same node twice is the same tensor twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx

from staticrt.frontend.arguments.structure import ResultSpec, Structure

InputKind = Literal["parameter", "buffer", "constant", "user"]


@dataclasses.dataclass(frozen=True)
class KnownInputs:
    """What is known of the flat arguments of a function before it is traced.

    Args:
        symbolic_ints: indices of ints that become symbols.
        weights: indices of tensors that are a model's parameters and buffers, handed in as arguments.
        constant_sizes: index of a tensor -> for each dimension, whether its size and stride are constants: calls
            with other values need another trace.
    """

    symbolic_ints: frozenset[int] = frozenset()
    weights: frozenset[int] = frozenset()
    constant_sizes: Mapping[int, tuple[bool, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """Where one placeholder's value comes from.

    Args:
        kind: parameter, buffer or constant of the model, or a leaf of the caller's arguments.
        target: the qualified name ("layers.0.weight"), or the leaf's index among the flat arguments.
        name: for messages: the qualified name, or the argument's path ("x", "kwargs['mask'][0]").
        mutated: the graph writes into it.
        weight: a leaf that is a model's parameter or buffer.
        literal: a constant in the model's code (`torch.tensor(2.0)`); no other code can reach it, so it never changes.
    """

    kind: InputKind
    target: str | int
    name: str
    mutated: bool = False
    weight: bool = False
    literal: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may be another value in every call."""
        return self.kind == "user" and not self.weight


@dataclasses.dataclass(frozen=True)
class Guard:
    """A condition on the caller's sizes under which the graph is right.

    Args:
        expression: Python source over the names of `GuardSet.symbols`.
        reason: the model line that made the frontend assume it.
    """

    expression: str
    reason: str

    def __str__(self) -> str:
        return f"{self.expression}   ({self.reason})" if self.reason else self.expression


@dataclasses.dataclass(frozen=True)
class SizeSymbol:
    """One number of a caller's leaf that guards may mention.

    Args:
        name: its name in guard expressions.
        leaf: index among the flat arguments.
        prop: "size", "stride", or "value" (the leaf itself is an int).
        dim: dimension, 0 for "value".
    """

    name: str
    leaf: int
    prop: Literal["size", "stride", "value"]
    dim: int


class GuardSet:
    """All size conditions of a trace, compiled to one function of the flat arguments."""

    def __init__(self, symbols: Sequence[SizeSymbol], guards: Sequence[Guard]) -> None:
        self.symbols = tuple(symbols)
        self.guards = tuple(guards)
        self._check = self._compile()

    def _compile(self) -> Callable[[Sequence[Any] | Mapping[int, Any]], bool] | None:
        if not self.guards:
            return None
        import math

        text = " and ".join(f"({guard.expression})" for guard in self.guards)
        lines = ["def check(leaves):"]
        for symbol in self.symbols:
            if symbol.name not in text:
                continue
            access = {"size": f".shape[{symbol.dim}]", "stride": f".stride({symbol.dim})", "value": ""}
            lines.append(f"    {symbol.name} = leaves[{symbol.leaf}]{access[symbol.prop]}")
        lines.append(f"    return {text}")
        scope: dict[str, Any] = {"math": math, "torch": torch, "min": min, "max": max}
        exec("\n".join(lines), scope)
        check: Callable[[Sequence[Any] | Mapping[int, Any]], bool] = scope["check"]
        return check

    def holds(self, leaves: Sequence[Any] | Mapping[int, Any]) -> bool:
        """Whether the flat arguments, at least those that have a symbol, satisfy every guard."""
        return self._check is None or bool(self._check(leaves))

    def refusing(self, leaves: Sequence[Any]) -> Guard | None:
        """The first guard that the flat arguments do not satisfy."""
        if self.holds(leaves):
            return None
        return next(guard for guard in self.guards if not GuardSet(self.symbols, [guard]).holds(leaves))


@dataclasses.dataclass
class TracedGraph:
    """One trace of a model; see the module's docstring for its invariants.

    Args:
        module: the graph, with sub-modules for control flow.
        inputs: one entry for each placeholder, in order.
        values: the tensors behind the entries that are not "user", in order (the model's own objects, not copies).
        in_spec: structure of the arguments `(args, kwargs)`.
        out_spec: how the flat outputs become the result.
        guards: conditions on sizes; another trace is needed where they fail.
        route: how it was traced ("trace", "dynamo").
        random: the graph draws random numbers, in eager's order.
        asks_layout: the model's code names what tells how a tensor lies in memory.
        decided: branches that data decides; the graph follows them and stops if data takes another branch.
        same: (index, first index) of each of the caller's leaves that is the same tensor as an earlier one.
        inference_outputs: indices of the outputs that are inference tensors because the model turns that mode on.
        catches: the model's code may go on after an error, which a graph does not: its call runs eagerly then.
        notes: readable remarks for `explain()`.
    """

    module: fx.GraphModule
    inputs: tuple[InputSpec, ...]
    values: tuple[torch.Tensor, ...]
    in_spec: Structure
    out_spec: ResultSpec
    guards: GuardSet
    route: str = "trace"
    random: bool = False
    asks_layout: bool = False
    decided: int = 0
    same: tuple[tuple[int, int], ...] = ()
    inference_outputs: frozenset[int] = frozenset()
    catches: bool = False
    notes: tuple[str, ...] = ()

    @property
    def user_leaves(self) -> tuple[int, ...]:
        """Indices of the caller's flat arguments that the graph takes, in placeholder order."""
        return tuple(int(spec.target) for spec in self.inputs if spec.kind == "user")

    @property
    def mutates(self) -> bool:
        """Whether the graph writes into any of its inputs."""
        return any(spec.mutated for spec in self.inputs)

    def outputs(self) -> tuple[Any, ...]:
        """The flat outputs: nodes or Python constants."""
        (output,) = self.module.graph.find_nodes(op="output")
        return tuple(output.args[0])
