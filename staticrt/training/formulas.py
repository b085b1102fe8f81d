"""Derivatives that Python code computes: custom autograd Functions, and formulas that libraries register for operators.

Eager runs such a backward in each backward pass, with the Python state of that moment; a recorded one does not. So it is
recorded only if its code reads nothing but what the call saved for it, torch, and what is compared before it is used
again. Second derivatives, and backwards that would run otherwise than the recorded one, run the model itself again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from staticrt import torch_private
from staticrt.frontend.arguments.structure import Builder, Flattener
from staticrt.frontend.graph import TracedGraph
from staticrt.frontend.guards.formula_reads import PLAIN, Reads
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.maybe_views import storage_of
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.tracer import AUTOGRAD_NODE, NO_GRAD
from staticrt.training.decomposed import recurrent

_HOME = "torch._library.autograd"
# In the metadata of a region's node: the last backward that reached its call, and which run of the call that was.
_REACHED = "staticrt reached"
# Linear in their first argument, if they read no other one that depends on a gradient; and in one of two factors.
_LINEAR = frozenset({
    "view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select",
    "clone", "detach", "alias", "neg", "sum", "mean", "_to_copy", "flip", "roll", "repeat", "split", "split_with_sizes",
    "unbind", "diagonal", "cumsum", "index", "gather", "index_select", "tril", "triu", "div", "constant_pad_nd",
})  # fmt: skip
_PRODUCTS = frozenset({"mul", "mm", "bmm", "mv", "dot", "matmul"})
_SUMS = frozenset({"add", "sub", "cat", "stack"})
# Linear in these arguments together; others of them are zeros.
_PUT = {
    "where": (1, 2),
    "copy": (0, 1),
    "fill": (0, 1),
    "masked_fill": (0, 2),
    "index_put": (0, 2),
    "scatter": (0, 3),
    "scatter_add": (0, 3),
    "index_add": (0, 3),
}
_OF_SIZES = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_empty", "new_ones"}
)
# Code writes all of what is empty before it reads it.
_ZEROS = frozenset({"zeros_like", "new_zeros", "zeros", "empty_like", "new_empty", "empty"})
_AS_THEIR_SOURCE = frozenset({
    "lift_fresh_copy", "expand", "_to_copy", "detach", "view", "select", "slice", "transpose", "t", "permute", "unsqueeze",
})  # fmt: skip


class Functions:
    """The custom autograd Functions behind the results of a trace.

    Args:
        nodes: their autograd nodes.
        results: the tensors that get an incoming gradient.
        request: of the trace.

    Attributes:
        may_differ: a backward may have to run otherwise than the recorded one, as `differs` tells.

    Raises:
        CannotTrace: the recorded backward of one could differ from eager's.
    """

    def __init__(self, nodes: Sequence[Any], results: Sequence[torch.Tensor], request: TraceRequest) -> None:
        self._reads = Reads()
        self._request = request
        # Of what the model reads, without what only its backward reads.
        self._state = request.snapshot.guard()
        self._loses = False  # one returns None where it could return a gradient
        self._given: list[torch.Tensor] = []  # the gradients that they return
        own = (node for node in nodes if node._forward_cls.__module__ != _HOME)
        self._numbers = {node._sequence_nr(): type(node).__name__ for node in own}
        self.nonlinear = ""  # why the sum of two backwards of a call may differ from the backward of a sum
        self._is_watched = False  # a nonlinear backward of a call was differentiated
        self._everything = (1 << len(results)) - 1
        self._masks = _reached_by(nodes, results) if len(results) > 1 else []
        self._contexts = [(node, [*_flat(vars(node).values())]) for node in nodes]
        for node in nodes:
            if reason := self._refused(node):
                raise CannotTrace(f"a custom autograd Function, {type(node).__name__}, which {reason}")
            edges = [following for following, _number in node.next_functions]
            node.register_hook(functools.partial(self._note, node._sequence_nr(), edges))
        if not all(isinstance(leaf, (torch.Tensor, *PLAIN)) for leaf in request.leaves):
            raise CannotTrace("a custom autograd Function, and an argument that is an object")
        request.snapshot.add_answer(self._reads.unchanged)

    def _refused(self, node: Any) -> str:
        """Why the backward of a node may not be recorded, or ""."""
        function = node._forward_cls
        attributes = vars(node)
        if function.__module__ == _HOME:  # the structure of lists of tensors, which a trace's key holds
            attributes = {name: value for name, value in attributes.items() if name != "_pt_metadata"}
        kept = [*_flat(attributes.values())]
        if others := [value for value in kept if not isinstance(value, (torch.Tensor, *PLAIN))]:
            return f"keeps an object of {type(others[0])}"
        if _has_shared_list(vars(node).values()):
            return "keeps a list that others can change"
        # A second backward without retain_graph may read them.
        if not node.saved_tensors and any(isinstance(value, torch.Tensor) for value in kept):
            return "keeps tensors that it does not save"
        if function.__module__ == _HOME:  # of an operator; a guard on its kernels also compares the formula
            return self._of_backward(node, formula_of(function), kept)
        own = "vjp" if function.vjp is not torch.autograd.Function.vjp else "backward"
        for name in (own, "forward", "setup_context"):
            self._reads.compare(function, name)
        return self._of_backward(node, getattr(function, own), kept)

    def _of_backward(self, node: Any, code: Any, kept: Iterable[Any]) -> str:
        """Why the code of a node's backward may not be recorded, or ""."""
        if reason := self._reads.add(code, has_context=True):
            return reason
        tensors = (value for value in (*node.saved_tensors, *kept) if isinstance(value, torch.Tensor))
        read = {name for value in tensors for name in vars(value)} & self._reads.attributes
        return f"reads {min(read)} of a tensor" if read else ""

    def _note(
        self, number: int, edges: Sequence[Any], given: Sequence[Any], _incoming: Sequence[Any]
    ) -> None:
        self._loses |= any(
            edge is not None and value is None for edge, value in zip(edges, given, strict=False)
        )
        if number in self._numbers:
            self._given += [value for value in given if value is not None]

    def end(self, tracer: Any, incoming: Iterable[torch.Tensor]) -> None:
        """The backward has been recorded.

        Raises:
            CannotTrace: it has changed what a call keeps for it, so that the next backward of the call differs.
        """
        for node, before in self._contexts:
            now = [*_flat(vars(node).values())]
            if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
                raise CannotTrace(
                    f"a custom autograd Function, {type(node).__name__}, which changes its context"
                )
            vars(node).clear()  # of numbers of this trace
        self._contexts.clear()
        self._check_linear(tracer, incoming)

    def _check_linear(self, tracer: Any, incoming: Iterable[torch.Tensor]) -> None:
        """Note whether what was recorded is linear in the incoming gradients.

        A second derivative runs the model again. Where a later backward reaches both the call and that run, a Function
        gets in two parts what eager adds up first.
        """
        depends = {storage_of(value) for value in incoming}
        with _disable_current_modes():
            literals = (
                each for each in tracer.inputs.lifted.values() if each.literal and each.value.numel() == 1
            )
            zeros = {each.node for each in literals if each.value.item() == 0}
        written: set[int] = set()  # memory that may hold other numbers than zeros
        for node in tracer.graph.nodes:
            if AUTOGRAD_NODE not in node.meta or _name_of(node) in _OF_SIZES:
                continue
            read = {each for each in node.all_input_nodes if not depends.isdisjoint(_storages(each))}
            if read:
                depends |= _storages(node)
                name = self._numbers.get(node.meta[AUTOGRAD_NODE])
                if name is not None and not _is_linear(node, read, zeros, written):
                    self.nonlinear = f"it is unknown whether {name} is linear in its gradient ({node.target})"
            elif isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                written |= _storages(node)
        if any(storage_of(value) not in depends for value in self._given):
            self.nonlinear = "a custom autograd Function returns what does not depend on its gradient"
        self._given.clear()

    @property
    def may_differ(self) -> bool:
        is_partial = self._loses or any(mask != self._everything for mask in self._masks)
        return self._reads.changes or (is_partial and bool(self._masks))

    def differs(self, undefined: Sequence[bool]) -> bool:
        """Whether the recorded backward differs from eager's, with these undefined incoming gradients, in the state of now.

        A Function that only undefined gradients reach does not run in eager; one that gets some makes zeros of them, or not.
        """
        given = sum(1 << number for number, absent in enumerate(undefined) if not absent)
        if self._is_watched:
            self._reach(torch._C._current_autograd_node().metadata, None)  # type: ignore[attr-defined]
        is_reached = given == self._everything or (
            not self._loses and all(mask & given for mask in self._masks)
        )
        return not (is_reached and self._reads.unchanged())

    def watch(self, roots: Iterable[torch.Tensor], sources: Iterable[Any]) -> None:
        """A call, whose node runs, was run again for a second derivative: refuse backwards that reach both, if they differ.

        Args:
            roots: results of that run.
            sources: its inputs.
        """
        if not self.nonlinear:
            return
        self._is_watched = True
        kept = torch._C._current_autograd_node().metadata  # type: ignore[attr-defined]
        run = object()
        seen = {value.grad_fn for value in sources if isinstance(value, torch.Tensor)} | {None}
        stack = [root.grad_fn for root in roots]
        while stack:
            node: Any = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [following for following, _number in node.next_functions]
                if isinstance(node, torch.autograd.function.BackwardCFunction):
                    node.register_prehook(lambda _incoming: self._reach(kept, run))

    def _reach(self, kept: Any, run: object) -> None:
        """Note that a backward reaches a run of a call; None: the call itself.

        Raises:
            RuntimeError: it has reached another run of the same call.
        """
        now = torch._C._current_graph_task_id()
        task, other = kept.get(_REACHED, (None, None))
        if task == now and other is not run:
            raise RuntimeError(
                f"staticrt cannot differentiate a model twice where one backward reaches both its results and its "
                f"gradients: {self.nonlinear}; run this part eagerly, under torch.compiler.disable"
            )
        kept[_REACHED] = now, run

    def model(self, traced: TracedGraph, results: Sequence[int]) -> Callable[..., list[Any]]:
        """The model itself on inputs of the graph, of which those of the model are its own tensors.

        Args:
            results: the flat outputs to return.
        """
        request = self._request
        own = iter(traced.values)
        owners = [None if spec.kind == "user" else next(own) for spec in traced.inputs]
        leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in request.leaves]

        def run(*inputs: Any) -> list[Any]:
            if not self._state.holds():
                raise RuntimeError(
                    "the model's state has changed since the forward, and its backward runs the model again"
                )
            given = [*leaves]
            with contextlib.ExitStack() as stack:
                for spec, owner, value in zip(traced.inputs, owners, inputs, strict=False):
                    if owner is None:
                        given[int(spec.target)] = value
                    elif spec.mutated:
                        stack.enter_context(_lent(owner, value))
                for repeat, first in traced.same:
                    given[repeat] = given[first]
                builder = Builder(given)
                args, kwargs = builder.build(request.spec)
                flattener = Flattener(
                    {id(each): n for n, each in enumerate(builder.containers)}, is_new=lambda _: True
                )
                flattener.flatten(request.function(*args, **kwargs))
            return [flattener.leaves[number] for number in results]

        return run


@contextlib.contextmanager
def _lent(tensor: torch.Tensor, value: torch.Tensor) -> Iterator[None]:
    """Context manager: a tensor of the model has the value that it had in an earlier call."""
    now = tensor.detach().clone()
    _put(tensor, value)
    try:
        yield
    finally:
        _put(tensor, now)


def _put(tensor: torch.Tensor, value: torch.Tensor) -> None:
    with torch_private.keeping_version(tensor), torch.no_grad():
        tensor.copy_(value)


def formula_of(function: Any) -> Any:
    """The formula that the Function of an operator of a library runs in its backward."""
    cells = inspect.getclosurevars(function.backward).nonlocals
    if "orig_backward" in cells:  # of an operator with lists of tensors, which torch flattens
        cells = inspect.getclosurevars(cells["orig_backward"]).nonlocals
    return getattr(cells["info"], "_backward_fn", None)


def is_recorded_whole(node: Any) -> bool:
    """Whether an autograd node is of our own operator, whose formula reads no state."""
    return node._forward_cls.__module__ == _HOME and formula_of(node._forward_cls) is recurrent.gradients


def _is_linear(node: fx.Node, read: set[fx.Node], zeros: set[fx.Node], written: set[int]) -> bool:
    """Whether an operator is linear in the arguments that depend on gradients."""
    name = _name_of(node)
    arguments = [*_flat(node.args)]
    if node.kwargs.get("rounding_mode") or (name == "constant_pad_nd" and any(node.args[2:])):
        return False
    if name in _LINEAR or name.endswith("_backward"):
        return read == {node.args[0]} and arguments.count(node.args[0]) == 1
    if name in _PRODUCTS:
        return len(read) == 1 and arguments.count(*read) == 1
    if name in _SUMS:
        is_list = name in ("cat", "stack")
        return read.issuperset(
            [each for each in arguments if isinstance(each, fx.Node)] if is_list else arguments[:2]
        )
    if name not in _PUT:
        return False
    values = [node.args[place] for place in _PUT[name]]
    others = read.difference(values)
    return not others and all(value in read or _is_zero(value, zeros, written) for value in values)


def _name_of(node: fx.Node) -> str:
    target = node.target
    return (
        target._schema.name.partition("::")[2].rstrip("_")
        if isinstance(target, torch._ops.OpOverload)
        else ""
    )


def _is_zero(value: Any, zeros: set[fx.Node], written: set[int]) -> bool:
    if not isinstance(value, fx.Node):
        return isinstance(value, (int, float)) and value == 0
    name = _name_of(value)
    if not written.isdisjoint(_storages(value)):
        return False
    if name in _AS_THEIR_SOURCE:
        return _is_zero(value.args[0], zeros, written)
    number = value.args[name == "full"] if name in ("full", "scalar_tensor") else 1
    return name in _ZEROS or value in zeros or (isinstance(number, (int, float)) and number == 0)


def _storages(node: fx.Node) -> set[int]:
    value = node.meta.get("val")
    return {storage_of(each) for each in _flat((value,)) if isinstance(each, torch.Tensor)}


def _reached_by(nodes: Sequence[Any], results: Sequence[torch.Tensor]) -> list[int]:
    """For each result of some autograd nodes that has a gradient, the incoming gradients that reach it, as a bit set."""
    reached: dict[tuple[Any, int], int] = {}
    wanted = set(nodes)
    for number, out in enumerate(results):
        stack: list[tuple[Any, int]] = [(out.grad_fn, out.output_nr)]
        seen: set[Any] = set()
        while stack:
            node, slot = stack.pop()
            if node in wanted:
                reached[node, slot] = reached.get((node, slot), 0) | 1 << number
            if node is not None and node not in seen:
                seen.add(node)
                stack += node.next_functions
    return list(reached.values())


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _flat(value)
        else:
            yield value


def _owners(values: Iterable[Any]) -> list[int]:
    """For each of some values, how many references to it there are."""
    return [sys.getrefcount(value) for value in values]


_ONE_OWNER = _owners([[]])[0]


def _has_shared_list(values: Collection[Any]) -> bool:
    """Whether something else also refers to a list among the values of a container: it may change before the backward."""
    for value, owners in zip(values, _owners(values), strict=True):
        if isinstance(value, (list, tuple)):
            may_change = isinstance(value, list) or any(isinstance(each, list) for each in value)
            if (may_change and owners > _ONE_OWNER) or _has_shared_list(value):
                return True
    return False


def differentiate_again(gm: fx.GraphModule) -> None:
    """Let our own operator with a formula run with gradients on where the forward runs again for second derivatives.

    The Function that runs the formula calls the operator with gradients off, and so it was recorded.
    """
    for node in gm.graph.nodes:
        if node.target is recurrent.STEPS and any(v.requires_grad for v in node.meta["val"]):
            node.meta.pop(NO_GRAD, None)
