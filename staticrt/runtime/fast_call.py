"""The fast path: calls that need no Python at all.

Each compiled callable goes through one C++ object that knows the calling conventions seen so far. A call that
matches one, whose guarded Python state is untouched and whose signature is prepared, runs without entering
Python; any other call goes to the executor, which may teach the fast path afterwards.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from staticrt import tuning
from staticrt.frontend.arguments import unread
from staticrt.frontend.arguments.layouts import Layout, apart
from staticrt.frontend.arguments.structure import ResultSpec, Structure
from staticrt.native import _C
from staticrt.runtime.call_key import weak_reference
from staticrt.runtime.call_spec import CallSpec
from staticrt.runtime.swaps import add_holder


class NativeGuard(Protocol):
    """Python state that a program depends on: a `StateGuard`, or none."""

    def native(self) -> _C.StateGuard | None:
        """What C++ checks in each call; None if only Python can check it."""


class _NotFast(Exception):
    """This calling convention needs Python."""


class FastPath:
    """What `staticrt.compile` calls first.

    Args:
        slow: the executor; takes every call that the fast path does not serve.
    """

    def __init__(self, slow: Callable[..., Any]) -> None:
        self.call: Callable[..., Any] = _C.make_fast_call(slow)
        self._known: set[tuple[Any, ...]] = set()
        self._tensors: set[int] = set()  # ids of a model's tensors, which C++ holds
        add_holder(self)

    @property
    def calls(self) -> int:
        """Calls served without Python."""
        return _C.fast_calls(self.call)

    def forget(self) -> None:
        """Drop everything learnt: a trace was made or invalidated."""
        _C.clear_fast_entries(self.call)
        self._known.clear()
        self._tensors.clear()

    def leave_to_eager(
        self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], num_calls: int
    ) -> None:
        """Hand the next `num_calls` calls like this one to `run`, until a trace is made or dropped.

        They are alike in the sizes, dtypes and devices of tensors, in other arguments, and in grad mode.
        """
        _C.leave_to_eager(self.call, run, args, kwargs, num_calls)

    def let_go(self, tensors: Collection[int]) -> None:
        """See `swaps.Holder`."""
        if not self._tensors.isdisjoint(tensors):
            self.forget()

    def learn(
        self,
        spec: CallSpec,
        program: _C.Executable,
        outputs: Sequence[Any],
        state: NativeGuard,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grad_states: Sequence[int] = (),
        region: _C.Region | None = None,
        *,
        takes_sizes: Callable[[Sequence[Any]], bool] | None = None,
        inputs: Sequence[Any] = (),
    ) -> None:
        """Serve calls like this one, which the executor has just served, from now on.

        Args:
            spec: the program's `CallSpec`.
            program: what ran.
            outputs: per flat output of the graph, ("tensor", position among the program's outputs) or
                ("constant", object).
            state: the Python state that the trace depends on.
            grad_states: for a program that differentiates by itself, `_C.grad_state` of each input, none of which
                may change. Empty: calls that need gradients are not served.
            region: the region whose forward the program is. Then `grad_states` says only whether an input requires a gradient.
            takes_sizes: see `CachedTrace.takes_sizes`; then calls of new sizes are served too.
            inputs: of the program, in this call; for `takes_sizes`.
        """
        environment = _C.environment()
        key = (id(program), environment, len(args), tuple(kwargs), spec.in_spec)
        if key in self._known:
            return
        self._known.add(key)
        if len(self._known) > tuning.FAST_CALL_ENTRIES:
            self.forget()
        guard = state.native()
        if environment is None or guard is None:
            return
        walker = _Arguments(spec)
        results = _Results(spec.out_spec, outputs)
        try:
            arguments = walker.walk_call(args, kwargs)
            result, writes = results.trees(walker.kinds)
        except _NotFast:
            return
        self._tensors.update(map(id, spec.values))
        _C.add_fast_entry(
            fast=self.call,
            num_positional=len(args),
            keyword_names=list(kwargs),
            arguments=arguments,
            num_containers=len(walker.kinds),
            result=result,
            writes=writes,
            executable=program,
            model_tensors=list(spec.values),
            guard=guard,
            environment=environment,
            grad_states=list(grad_states),
            region=region,
            requires_grad=walker.requires_grad,
            takes_sizes=takes_sizes,
            served=list(inputs),
        )


class _Arguments:
    """Turns one call's arguments into the trees that C++ matches, as `Flattener` takes them apart."""

    def __init__(self, spec: CallSpec) -> None:
        first = len(spec.values)
        self._spec = spec.in_spec
        self._inputs = {leaf: first + k for k, leaf in enumerate(spec.user_leaves)}
        self._inputs.update({leaf: self._inputs[of] for leaf, of in spec.same if of in self._inputs})
        self._first = first
        self.requires_grad = [False] * len(spec.user_leaves)
        self.kinds: list[str] = []  # of each container, by its number
        self._leaf = 0

    def walk_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, ...]]:
        """One tree per argument."""
        positional, keywords = self._spec.children
        trees = list(map(self._walk, positional.children, args))
        self.kinds.append("keywords")
        trees += map(self._walk, keywords.children, kwargs.values())
        if any(leaf >= self._leaf for leaf in self._inputs):  # some input was not found
            raise _NotFast
        return trees

    def _walk(self, spec: Structure, value: Any) -> tuple[Any, ...]:
        if spec.kind is None:
            return self._walk_leaf(value)
        if spec.kind == "ref":
            return ("ref", spec.context)
        if spec.kind == unread.KIND:
            return ("class", *spec.context)
        if spec.is_tuple:
            return ("tuple", spec.kind, list(map(self._walk, spec.children, value)))
        number = len(self.kinds)
        if isinstance(spec.context, Layout):
            self.kinds.append("registered")
            held, _layout = apart(value) or ([], None)
            children = list(map(self._walk, spec.children, held))
            return ("registered", number, spec.kind, apart, spec.context, children)
        if spec.kind is list:
            self.kinds.append("list")
            return ("list", number, list(map(self._walk, spec.children, value)))
        if spec.kind is dict:
            self.kinds.append("dict")
            items = zip(value, map(self._walk, spec.children, value.values()), strict=True)
            return ("dict", number, list(items))
        if spec.is_object:
            if not _has_plain_dict(spec.kind):
                raise _NotFast
            self.kinds.append("object")
            attributes = vars(value)
            items = zip(attributes, map(self._walk, spec.children, attributes.values()), strict=True)
            return ("object", number, spec.kind, list(items))
        self.kinds.append("registered")
        flatten = pytree.SUPPORTED_NODES[spec.kind].flatten_fn
        children = list(map(self._walk, spec.children, flatten(value)[0]))
        return ("registered", number, spec.kind, flatten, spec.context.value, children)

    def _walk_leaf(self, value: Any) -> tuple[Any, ...]:
        leaf = self._leaf
        self._leaf += 1
        kind = type(value)
        if kind in (torch.Tensor, torch.nn.Parameter):
            # A tensor that the graph does not take may still be guarded: its sizes are checked in Python.
            if leaf not in self._inputs:
                raise _NotFast
            self.requires_grad[self._inputs[leaf] - self._first] = value.requires_grad
            return ("tensor", self._inputs[leaf])
        if leaf in self._inputs:
            if kind is not int:
                raise _NotFast
            return ("int", self._inputs[leaf])
        if kind in (bytes, complex) or isinstance(value, torch.Tensor):
            raise _NotFast
        weak = weak_reference(value)
        return ("constant", value) if weak is None else ("identity", weak)


def _has_plain_dict(kind: type) -> bool:
    """Whether attributes of such objects are what lies in their dict."""
    owner = next((each for each in kind.__mro__ if "__dict__" in vars(each)), None)
    plain = not any("__getattribute__" in vars(each) for each in kind.__mro__ if each is not object)
    return plain and owner is not None and isinstance(vars(owner)["__dict__"], types.GetSetDescriptorType)


class _Results:
    """Turns a result's structure into the trees that C++ builds from, as `Builder` puts values together."""

    def __init__(self, spec: ResultSpec, outputs: Sequence[Any]) -> None:
        self._spec = spec
        leaves = list(outputs)
        for index, value in spec.objects.items():
            leaves[index] = ("constant", value)
        self._leaves = iter(leaves)
        self._number = 0
        self._open: set[int] = set()  # containers that are made after what they hold

    def trees(self, kinds: Sequence[str]) -> tuple[tuple[Any, ...], list[tuple[int, tuple[Any, ...]]]]:
        """Of the result, and of the new contents of the caller's containers, which are of these kinds."""
        self._number = len(kinds)
        result = self._walk(self._spec.result)
        if any(kinds[number] not in ("list", "dict", "object") for number, _ in self._spec.writes):
            raise _NotFast
        return result, [(number, self._walk(spec)) for number, spec in self._spec.writes]

    def _walk(self, spec: Structure) -> tuple[Any, ...]:
        if spec.kind is None:
            return tuple(next(self._leaves))
        if spec.kind == "ref":
            if spec.context in self._open:
                raise _NotFast
            return ("ref", spec.context)
        if spec.kind is tuple:
            return ("tuple", list(map(self._walk, spec.children)))
        if spec.is_tuple:
            return ("call", spec.rebuild, False, list(map(self._walk, spec.children)))
        number = self._number
        self._number += 1
        if isinstance(spec.context, Layout):
            return self._call(spec, number)
        if spec.kind is list:
            return ("list", list(map(self._walk, spec.children)))
        if spec.kind is dict:
            return ("dict", list(zip(spec.context, map(self._walk, spec.children), strict=True)))
        return self._call(spec, number)

    def _call(self, spec: Structure, number: int) -> tuple[Any, ...]:
        self._open.add(number)
        children = list(map(self._walk, spec.children))
        self._open.discard(number)
        return ("call", spec.rebuild, True, children)
