"""Checks a rewritten graph against the original: runs both eagerly and compares everything a caller can see."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from staticrt.errors import PassError
from staticrt.passes.base import BITWISE, Tolerance


class Observed:
    """One eager run: results, inputs, aliases and random state afterwards."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        given = copy.deepcopy(list(inputs))
        state = torch.get_rng_state()
        try:
            torch.manual_seed(0)
            with torch.no_grad():
                returned = fx.Interpreter(gm, garbage_collect_values=True).run(*given)
            self.random_state = torch.get_rng_state()
        finally:
            torch.set_rng_state(state)
        self.values = [*tree_leaves(returned), *tree_leaves(given)]
        self.num_outputs = len(tree_leaves(returned))
        tensors = {i: v for i, v in enumerate(self.values) if isinstance(v, torch.Tensor)}
        constants = [t for t in (*gm.parameters(), *gm.buffers()) if t.numel()]
        held = {t.untyped_storage()._cdata for t in constants}
        self.same_object = _classes({i: id(v) for i, v in tensors.items()})
        self.same_storage = _classes({i: v.untyped_storage()._cdata for i, v in tensors.items() if v.numel()})
        self.constants = [i for i, v in tensors.items() if v.untyped_storage()._cdata in held]


def _classes(keys: dict[int, int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for index, key in keys.items():
        groups.setdefault(key, []).append(index)
    return [group for group in groups.values() if len(group) > 1]


class Comparison:
    """The effects of a graph on example inputs, with which later graphs are compared.

    Args:
        gm: the graph before any rewriting.
        inputs: one value per placeholder; never written, the runs get copies.
    """

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._inputs = list(inputs)
        self._want = Observed(gm, inputs)
        self._tolerance = BITWISE

    def check(self, gm: fx.GraphModule, name: str, tolerance: Tolerance = BITWISE) -> None:
        """Compare `gm` with the first graph.

        Args:
            gm: the graph after pass `name`.
            tolerance: how far this pass may move results; from then on later passes inherit it.

        Raises:
            PassError: names the pass and the first difference.
        """
        self._tolerance = Tolerance(
            max(self._tolerance.rtol, tolerance.rtol), max(self._tolerance.atol, tolerance.atol)
        )
        got, want = Observed(gm, self._inputs), self._want
        difference = self._difference(got, want)
        if difference:
            raise PassError(
                f"pass {name!r} changed the meaning of the graph: {difference}",
                fix=f"leave it out with disabled={{{name!r}}} and report it",
            )

    def _difference(self, got: Observed, want: Observed) -> str:
        if len(got.values) != len(want.values):
            return f"{got.num_outputs} outputs instead of {want.num_outputs}"
        for i, (a, b) in enumerate(zip(got.values, want.values, strict=True)):
            what = f"output {i}" if i < want.num_outputs else f"input {i - want.num_outputs} afterwards"
            try:
                _compare(a, b, self._tolerance)
            except AssertionError as error:
                return f"{what}: {' '.join(str(error).split())}"
        if not torch.equal(got.random_state, want.random_state):
            return "another number of random numbers was drawn"
        if got.same_object != want.same_object:
            return f"which results are the same tensor: {got.same_object} instead of {want.same_object}"
        if got.same_storage != want.same_storage:
            return f"which results share storage: {got.same_storage} instead of {want.same_storage}"
        fresh = [i for i in got.constants if i not in want.constants]
        if fresh:
            return f"output {fresh[0]} is a constant of the graph, which the caller could write"
        return ""


def _compare(a: Any, b: Any, tolerance: Tolerance) -> None:
    if not isinstance(b, torch.Tensor):
        assert type(a) is type(b), f"{type(a).__name__} instead of {type(b).__name__}"
        assert a == b or (a != a and b != b), f"{a} instead of {b}"
        return
    assert isinstance(a, torch.Tensor), f"{a} instead of a tensor"
    torch.testing.assert_close(
        a, b, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True, check_stride=b.numel() > 0
    )
    if tolerance.bitwise and b.dtype.is_floating_point:
        assert torch.equal(torch.signbit(a), torch.signbit(b)), "zeros or NaNs of another sign"
