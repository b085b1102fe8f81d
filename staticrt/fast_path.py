"""The fast path: calls that need no Python at all.

Each compiled callable goes through one C++ object that knows the calling conventions seen so far. A call that
matches one, whose guarded Python state is untouched and whose signature is prepared, runs without entering
Python; any other call goes to the engine, which may teach the fast path afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.frontend.graph import CapturedGraph
from staticrt.frontend.state import StateGuard
from staticrt.frontend.structure import LEAF, Structure
from staticrt.native import _C

_MAX_ENTRIES = 64


class _NotFast(Exception):
    """This calling convention needs Python."""


class FastPath:
    """What `staticrt.compile` calls first.

    Args:
        slow: the engine; takes every call that the fast path does not serve.
    """

    def __init__(self, slow: Callable[..., Any]) -> None:
        self.call: Callable[..., Any] = _C.make_fast_call(slow)
        self._known: set[tuple[Any, ...]] = set()

    @property
    def calls(self) -> int:
        """Calls served without Python."""
        return _C.fast_calls(self.call)

    def forget(self) -> None:
        """Drop everything learnt: a capture was made or invalidated."""
        _C.clear_fast_entries(self.call)
        self._known.clear()

    def learn(
        self,
        captured: CapturedGraph,
        program: _C.Executable,
        outputs: Sequence[Any],
        state: StateGuard,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grad_states: Sequence[int] = (),
    ) -> None:
        """Serve calls like this one, which the engine has just served, from now on.

        Args:
            captured, program: what ran.
            outputs: per flat output of the graph, ("tensor", position among the program's outputs) or
                ("constant", object).
            state: holds while the capture does.
            grad_states: of a program that differentiates by itself: `_C.grad_state` of each input, none of which
                may change. Empty: calls that need gradients are not served.
        """
        key = (id(program), len(args), tuple(kwargs), captured.in_spec)
        if key in self._known:
            return
        self._known.add(key)
        if len(self._known) > _MAX_ENTRIES:
            self.forget()
        environment = _C.environment()
        guard = state.native()
        if environment is None or guard is None:
            return
        walker = _Arguments(captured)
        try:
            arguments = [walker.walk(value) for value in (*args, *kwargs.values())]
            walker.check_complete()
            leaves = list(outputs)
            for index, value in captured.out_spec.objects.items():
                leaves[index] = ("constant", value)
            if captured.out_spec.writes or captured.in_spec.has_references():
                return
            result = _result(captured.out_spec.result, leaves)
        except _NotFast:
            return
        _C.add_fast_entry(
            fast=self.call,
            num_positional=len(args),
            keyword_names=list(kwargs),
            arguments=arguments,
            result=result,
            executable=program,
            model_tensors=list(captured.values),
            guard=guard,
            environment=environment,
            grad_states=list(grad_states),
            requires_grad=walker.requires_grad,
        )


class _Arguments:
    """Turns one call's arguments into the trees that C++ matches; leaves are counted in pytree order."""

    def __init__(self, captured: CapturedGraph) -> None:
        first = len(captured.values)
        self._inputs = {leaf: first + k for k, leaf in enumerate(captured.user_leaves)}
        self._inputs.update({leaf: self._inputs[of] for leaf, of in captured.same if of in self._inputs})
        self._first = first
        self.requires_grad = [False] * len(captured.user_leaves)
        self._guarded = {symbol.leaf for symbol in captured.guards.symbols}
        self._leaf = 0

    def walk(self, value: Any) -> tuple[Any, ...]:
        kind = type(value)
        if kind in (tuple, list):
            return (kind.__name__, [self.walk(item) for item in value])
        if kind is dict:
            # pytree flattens a dict in insertion order.
            return ("dict", [(key, self.walk(item)) for key, item in value.items()])
        leaf = self._leaf
        self._leaf += 1
        if kind in (torch.Tensor, torch.nn.Parameter):
            # A tensor that the graph does not take may still be guarded: its sizes are checked in Python.
            if leaf not in self._inputs:
                raise _NotFast
            self.requires_grad[self._inputs[leaf] - self._first] = value.requires_grad
            return ("tensor", self._inputs[leaf])
        if leaf in self._inputs or kind not in (int, float, bool, str, type(None)):
            raise _NotFast
        return ("constant", value)

    def check_complete(self) -> None:
        """Every input of the graph was found among the arguments."""
        if any(leaf >= self._leaf for leaf in self._inputs):
            raise _NotFast


def _result(spec: Structure, leaves: list[Any]) -> tuple[Any, ...]:
    """The tree of a result; takes its leaves off the front of `leaves`."""
    if spec is LEAF:
        return tuple(leaves.pop(0))
    if spec.kind == "ref":
        raise _NotFast
    children = [_result(child, leaves) for child in spec.children]
    if spec.kind in (tuple, list):
        return (spec.kind.__name__, children)
    if spec.kind is dict:
        return ("dict", list(zip(spec.context, children, strict=True)))
    return ("call", spec.rebuild, children)
