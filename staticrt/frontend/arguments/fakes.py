"""Fake inputs with symbolic sizes for one trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import GuardSource, Source

from staticrt.frontend.arguments.structure import repeated
from staticrt.frontend.graph import Guard, GuardSet, KnownInputs, SizeSymbol
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.frontend.tracing.symbols import guard_source
from staticrt.shapes.fake_results import fresh
from staticrt.shapes.size_env import SizeEnv
from staticrt.shapes.size_nodes import new_size


def layout_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """How a tensor's strides follow from its sizes; None: contiguous.

    Lists the dimensions from the outermost stride to the innermost: `d` if the stride is the product of the sizes inside
    it, `~d` if it is any other number, and `d + 1000` if it is 0. Operators that look at strides treat two tensors of
    one layout alike.
    """
    if tensor.is_contiguous():
        return None
    sizes, strides = tensor.shape, tensor.stride()
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], d))
    code: list[int] = []
    expected = 1
    for dim in reversed(order):
        if strides[dim] == 0 and sizes[dim] != 1:
            code.append(dim + 1000)
        elif strides[dim] == expected or sizes[dim] == 1:
            code.append(dim)
            expected *= sizes[dim]
        else:
            code.append(~dim)
            expected = strides[dim] * sizes[dim]
    return tuple(reversed(code))


@dataclasses.dataclass
class FakeInputs:
    """The fakes of the caller's leaves, and where the values of their symbols come from."""

    leaves: list[Any]
    symbols: dict[Any, SizeSymbol]  # symbol -> where the caller's value is found
    fixed: list[tuple[SizeSymbol, int]]  # sizes that are constants of the trace


# What the names of symbols begin with.
_LETTERS = {"size": "s", "stride": "p", "value": "v"}


class _Size(Source):
    """The source of a symbol: only a name, because torch generates no guards from it."""

    def __init__(self, name: str) -> None:
        self._text = name

    @property
    def _name_template(self) -> str:
        return self._text

    @property
    def guard_source(self) -> GuardSource:  # type: ignore[override]
        return GuardSource.CONSTANT


class FakeMaker:
    """Makes fake leaves in a fake mode.

    Args:
        fake_mode: a `TraceFakeMode`.
        sizing: which sizes get symbols.
    """

    def __init__(self, fake_mode: Any, sizing: Sizing) -> None:
        self.fake_mode = fake_mode
        self.env = fake_mode.sizes
        self.oblivious = sizing.is_oblivious
        self.static = sizing.is_constant
        self.symbols: dict[Any, SizeSymbol] = {}
        self.fixed: list[tuple[SizeSymbol, int]] = []

    def make(self, leaves: Sequence[Any], known: KnownInputs) -> FakeInputs:
        """Fakes of all leaves; numbers in `known.symbolic_ints` become symbols, other non-tensors stay."""
        fakes: list[Any] = []
        first = dict(repeated(leaves))
        for index, leaf in enumerate(leaves):
            if index in first:
                fakes.append(fakes[first[index]])
            elif isinstance(leaf, torch.Tensor):
                constant = known.constant_sizes.get(index, (False,) * leaf.dim())
                fakes.append(self._tensor(index, leaf, constant))
            elif index in known.symbolic_ints:
                fakes.append(self._symbol(index, "value", 0, leaf))
            else:
                fakes.append(leaf)
        return FakeInputs(fakes, self.symbols, self.fixed)

    def _symbol(self, leaf: int, prop: Any, dim: int, value: int, constant: bool = False) -> Any:
        # Symbols are positive to sympy: an empty dimension is a constant, and part of a call's key.
        empty = prop == "size" and value == 0
        constant |= self.static or empty or (value in (0, 1) and not self.oblivious)
        if prop != "value" and constant:
            letter = "d" if prop == "size" else "t"
            self.fixed.append((SizeSymbol(f"{letter}{leaf}_{dim}", leaf, prop, dim), value))
            return value
        if isinstance(self.env, SizeEnv):
            made = new_size(self.env, f"{_LETTERS[prop]}{leaf}_{dim}", value, positive=prop != "value")
            self.symbols[made.node.expr.atom] = SizeSymbol(made.node.expr.text, leaf, prop, dim)
            return made
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = _Size(f"{prop}_{leaf}_{dim}")
        symbol = self.env.create_symbol(
            value,
            source,
            DimDynamic.DYNAMIC,
            positive=None if prop == "value" else True,
            do_not_specialize_zero_one=self.oblivious or prop == "value",
        )
        self.symbols[symbol] = SizeSymbol(str(symbol), leaf, prop, dim)
        return self.env.create_symintnode(symbol, hint=value, source=source)

    def _tensor(self, index: int, real: torch.Tensor, constant: Sequence[bool]) -> torch.Tensor:
        sizes = [self._symbol(index, "size", dim, size, constant[dim]) for dim, size in enumerate(real.shape)]
        strides: list[Any] = [1] * len(sizes)
        layout = layout_of(real)
        expected: Any = 1
        reached = 1  # elements from the first to the last of the dimensions so far
        for code in reversed(layout if layout is not None else range(len(sizes))):
            if code >= 1000:
                strides[code - 1000] = 0
                continue
            dim = code if code >= 0 else ~code
            if code < 0:
                # Of two equal strides of overlapping dimensions, the sizes decide which is the inner one.
                overlaps = real.stride(dim) < reached
                expected = self._symbol(index, "stride", dim, real.stride(dim), constant[dim] or overlaps)
            # The stride of one element is arbitrary, but may decide the memory format of results.
            strides[dim] = real.stride(dim) if constant[dim] and sizes[dim] == 1 else expected
            expected = expected * sizes[dim]
            reached += (real.shape[dim] - 1) * real.stride(dim)
        if isinstance(self.env, SizeEnv):
            fake = fresh(self.fake_mode, sizes, strides, real.dtype, real.device)
        else:
            with self.fake_mode:
                fake = torch.empty_strided(sizes, strides, dtype=real.dtype, device=real.device)
        if isinstance(real, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=real.requires_grad)
        elif real.requires_grad:
            fake.requires_grad_()
        return fake


def guards_of(env: Any, inputs: FakeInputs) -> GuardSet:
    """The conditions that a ShapeEnv or SizeEnv gathered, over the caller's sizes."""
    symbols = inputs.symbols
    sizes = [*symbols.values(), *(size for size, _value in inputs.fixed)]
    guards = [Guard(f"{size.name} == {value}", "") for size, value in inputs.fixed]
    if isinstance(env, SizeEnv):
        env.close()
        return GuardSet(sizes, [*guards, *(Guard(text, place) for text, place in env.guards.items())])
    import sympy

    seen: set[str] = set()

    def add(expr: Any, reason: str) -> None:
        if expr in (sympy.true, True):
            return
        text = guard_source(expr)
        if text not in seen:
            seen.add(text)
            guards.append(Guard(text, reason))

    for symbol, size in symbols.items():
        value = env.replace(symbol)
        # Otherwise an assertion in the graph checks it.
        if value != symbol and value.free_symbols <= symbols.keys():
            add(sympy.Eq(symbol, value, evaluate=False), "")
        bounds = env.var_to_range.get(symbol)
        if bounds is not None and size.prop == "size" and bounds.lower.is_finite and int(bounds.lower) >= 2:
            add(sympy.Ge(symbol, bounds.lower, evaluate=False), "")
    for guard in env.guards:
        expr = guard.expr
        if expr.free_symbols <= symbols.keys():
            add(expr, _reason(guard))
        else:
            replaced = env.replace(expr)
            if replaced.free_symbols <= symbols.keys():
                add(replaced, _reason(guard))
    return GuardSet(sizes, guards)


def _reason(guard: Any) -> str:
    """The model line of a guard: the innermost frame of model code when it was made."""
    place = getattr(guard.sloc, "framework_loc", "")
    return place if isinstance(place, str) else ""
