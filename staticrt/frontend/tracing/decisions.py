"""Branches that data decides: `if mask.any():`, `for i in range(int(n)):`.

A graph has no Python branches. If a model reads a number or truth value that depends on data, the trace computes it from
the call's own arguments, follows the branch that eager would take, and records a node that checks the same value in every
later call. When the check fails nothing has been written yet, and the executor takes another trace or makes one.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from staticrt import tuning
from staticrt.frontend.guards.process_state import without_autocast
from staticrt.frontend.reasons import OTHERWISE, CannotTrace
from staticrt.ops import draws
from staticrt.shapes import size_expr
from staticrt.shapes.size_env import SizeEnv
from staticrt.shapes.size_nodes import SizeNode

if TYPE_CHECKING:
    from staticrt.frontend.tracing.tracer import Tracer

aten = torch.ops.aten


class Decisions:
    """The values that one trace reads of data.

    Args:
        tracer: the trace's tracer.
        leaves: the caller's flat arguments; never written.
    """

    def __init__(self, tracer: Tracer, leaves: Sequence[Any]) -> None:
        self._tracer = tracer
        self._leaves = leaves
        self._run: _RealRun | None = None
        self._answers: dict[Any, Any] = {}

    def decide(self, expr: Any) -> Any:
        """The value of `expr` for this call's data, as a sympy value; None if unknown."""
        import sympy

        if expr in self._answers:
            return self._answers[expr]
        tracer = self._tracer
        if len(self._answers) >= tuning.MAX_DECISIONS:
            return None
        with _unwatched(tracer):
            node = tracer.symbols.from_expr(expr, tracer.shape_env)
            if not isinstance(node, fx.Node):
                return sympy.sympify(node)
            value = self._value_of(node)
            if value is None:
                return None
            self._check(node, value)
        answer = self._answers[expr] = sympy.sympify(value)
        return answer

    def truth_of(self, func: Any, tensor: torch.Tensor) -> bool | None:
        """The truth value of a tensor with one, where sizes are our own; None: torch's have to represent it."""
        tracer = self._tracer
        env = tracer.shape_env
        if not isinstance(env, SizeEnv) or tensor.dtype is not torch.bool:
            return None
        if tracer.decided >= tuning.MAX_DECISIONS:
            raise CannotTrace("data decides too many branches")
        with _unwatched(tracer):
            name = f"data{len(tracer.unbacked.found)}"
            number = SizeNode(env, size_expr.symbol(name, positive=False), 0)
            node = tracer.record(func, (tensor,), {}, torch.SymInt(number), 0)  # type: ignore[no-untyped-call]
            value = self._value_of(node)
            if not isinstance(value, bool):
                env.give_up("a truth value that data decides")
            tracer.unbacked.bind_to(number.expr, node)
            self._check(node, int(value))
        return value

    def value_now(self, expr: Any) -> Any:
        """The value of `expr` for this call's data; None if unknown. Later calls do not check it."""
        with _unwatched(self._tracer):
            node = self._tracer.symbols.from_expr(expr, self._tracer.shape_env)
            return self._value_of(node) if isinstance(node, fx.Node) else node

    def _value_of(self, node: fx.Node) -> Any:
        if self._run is None or not self._run.still_fits():
            self._run = _RealRun(self._tracer, self._leaves)
        try:
            value = self._run.value_of(node)
        except _Unknown:
            return None
        return value if isinstance(value, (bool, int, float)) else None

    def _check(self, node: fx.Node, value: Any) -> None:
        """Record that the program is valid only if `node` equals `value`."""
        tracer = self._tracer
        graph = tracer.graph
        condition = node
        if isinstance(value, bool):
            if not value:
                condition = graph.call_function(torch.sym_not, (node,))
                condition.meta["val"] = torch.sym_not(node.meta["val"])  # type: ignore[no-untyped-call]
        else:
            condition = graph.call_function(operator.eq, (node, value))
            condition.meta["val"] = node.meta["val"] == value
        check = graph.call_function(aten._assert_scalar.default, (condition, f"{OTHERWISE} than {value}"))
        check.meta["val"] = None
        tracer.annotate(check)
        tracer.decided += 1


def checks_of(graph: fx.Graph) -> list[fx.Node]:
    """The nodes of a graph that check decisions."""
    return [
        node
        for node in graph.find_nodes(op="call_function", target=aten._assert_scalar.default)
        if str(node.args[1]).startswith(OTHERWISE)
    ]


class _Unknown(Exception):
    """A value that cannot be computed while tracing."""


_DRAWN = object()  # stands for random numbers, and what is computed from them


class _RealRun:
    """Recorded nodes, run on real arguments.

    Only nodes that a decision needs are run; if they read written values, all nodes are run, in order, on copies. Random
    numbers are never drawn, because the call itself draws them later and other threads draw meanwhile.
    """

    def __init__(self, tracer: Tracer, leaves: Sequence[Any]) -> None:
        self._tracer = tracer
        self._leaves = leaves
        self._in_order = tracer.writes
        self._values: dict[fx.Node, Any] = {}
        self._copies: dict[int, torch.UntypedStorage] = {}

    def still_fits(self) -> bool:
        """False once the graph has a write."""
        return self._in_order == self._tracer.writes

    def value_of(self, node: fx.Node) -> Any:
        kept = torch._C._PreserveDispatchKeyGuard()
        with kept, _disable_current_modes(), without_autocast(), torch.no_grad():
            torch._C._set_meta_in_tls_dispatch_include(False)  # it is on where a meta kernel asks
            for each in self._needed(node):
                if each not in self._values:
                    self._values[each] = self._compute(each)
        if self._values[node] is _DRAWN:
            raise _Unknown
        return self._values[node]

    def _needed(self, node: fx.Node) -> list[fx.Node]:
        wanted, stack = {node}, [node]
        while stack:
            for source in stack.pop().all_input_nodes:
                if source not in wanted:
                    wanted.add(source)
                    stack.append(source)
        nodes = list(self._tracer.graph.nodes)
        before = nodes[: nodes.index(node) + 1]
        if self._in_order and _read_written(before, wanted):
            return before
        return [each for each in before if each in wanted]

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._placeholder(node)
        target: Any = node.target
        if node.op != "call_function" or isinstance(target, torch._ops.HigherOrderOperator):
            raise _Unknown
        if target is aten._assert_scalar.default:
            return None
        drawn = any(self._values[each] is _DRAWN for each in node.all_input_nodes)
        if drawn or draws(node):
            if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
                raise _Unknown  # memory of which later nodes may read
            return _DRAWN
        args = fx.map_arg(node.args, self._values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self._values.__getitem__)
        return target(*args, **kwargs)

    def _placeholder(self, node: fx.Node) -> Any:
        for lifted in self._tracer.inputs.lifted.values():
            if lifted.node is node:
                return self._own(lifted.value)
        if node not in self._tracer.inputs.user:
            raise _Unknown
        return self._own(self._leaves[int(str(node.target).removeprefix("arg_"))])

    def _own(self, value: Any) -> Any:
        """A tensor that the run may write: a copy, which shares memory with other copies as the original does."""
        if not self._in_order or not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        copy = self._copies.get(storage._cdata)
        if copy is None:
            copy = self._copies[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(copy, value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]


def _read_written(nodes: Sequence[fx.Node], wanted: set[fx.Node]) -> bool:
    """Whether some of the nodes' values lie in memory that the nodes write."""
    written = {
        memory
        for node in nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        for memory in memory_of(node.all_input_nodes)
    }
    return not written.isdisjoint(memory_of(wanted))


def memory_of(nodes: Iterable[fx.Node]) -> set[int]:
    """The storages of the fake values of nodes."""
    values = tree_leaves([each.meta.get("val") for each in nodes])
    return {value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)}


@contextlib.contextmanager
def _unwatched(tracer: Tracer) -> Iterator[None]:
    if tracer.watcher is None:
        yield
        return
    with tracer.watcher.paused():
        yield
