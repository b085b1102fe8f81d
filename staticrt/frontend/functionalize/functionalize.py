"""Turn a recorded graph with writes into a functional one with write-backs at its end.

The recorded graph has eager's in-place operators and views; its fake values share storages exactly as eager's
tensors do. Each written storage has a *root* (the node that made it). A write through a view becomes the functional
operator, and its result is put back into the root by the view's inverse (`slice_scatter` …). Later readers of an
alias get their view chain again, from the new root value. Nodes that touch no written storage are copied as
they are, so the cost is that of the writes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.maybe_views import shares_storage, storage_of
from staticrt.frontend.tracing.tracer import Tracer, expressions

aten = torch.ops.aten

# Updates of whole parameter groups: they stay in place, since copies of all parameters would only be copied back.
_STAY_IN_PLACE = frozenset({"staticrt::adam_", "staticrt::sgd_"})
# Views that have all elements of what they view.
_OF_ALL = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.transpose.int, aten.permute.default, aten.t.default,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
})  # fmt: skip


def functionalize(recorded: Tracer, outputs: list[Any]) -> tuple[Tracer, list[Any], set[fx.Node]]:
    """A functional copy of a recorded graph.

    Args:
        recorded: the tracer after the model ran.
        outputs: flat outputs: fake tensors, symbolic numbers, or Python values.

    Returns:
        A tracer that holds the new graph, the graph form of each output, and the placeholders written back.

    Raises:
        CannotTrace: a write whose effect has no functional form.
    """
    return _Functionalizer(recorded).run(outputs)


class _Functionalizer:
    def __init__(self, recorded: Tracer) -> None:
        self.old = recorded
        self.new = Tracer(recorded.fake_mode, parent=recorded.parent, control_flow=recorded.control_flow)
        self.new.bodies = recorded.bodies
        self.new.random = recorded.random
        self.env: dict[fx.Node, Any] = {}  # old node -> value of the new graph's node for it
        self.nodes_of: dict[int, fx.Node] = dict(recorded.tensors.nodes)
        self.written = self._written_storages()
        self.version: dict[int, int] = dict.fromkeys(self.written, 0)
        self.roots: dict[int, fx.Node] = {}
        self.current: dict[fx.Node, int] = {}  # old node -> version of its storage that env holds
        self.placeholders: dict[fx.Node, fx.Node] = {}
        self.stored: dict[int, int] = {}  # storage -> version that its placeholder holds, if not 0
        self.done: set[fx.Node] = set()  # placeholders written

    def _written_storages(self) -> set[int]:
        found: set[int] = set()
        for node in self.old.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                for arg in written_args(node):
                    found.add(storage_of(arg.meta["val"]))
        return found

    def run(self, outputs: list[Any]) -> tuple[Tracer, list[Any], set[fx.Node]]:
        for node in self.old.graph.find_nodes(op="placeholder"):
            self._placeholder(node)
        self.new.inputs.take_over(self.old.inputs, self.placeholders)
        for node in self.old.graph.nodes:
            if node.op != "placeholder":
                self.new.source_node = node
                self._node(node)
        written_back = self._write_back()
        return self.new, [self._output(out) for out in outputs], written_back

    # -- nodes -------------------------------------------------------------------------------------------------

    def _placeholder(self, node: fx.Node) -> None:
        value = node.meta["val"]
        new = self.new.graph.placeholder(node.name)
        new.meta["val"] = value
        self.placeholders[node] = new
        self.env[node] = value
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol and self.old.parent is not None:
            self.new.symbols.define(value.node.expr, new)
        if isinstance(value, torch.Tensor):
            self.new.tensors.track(value, new)
            self._define_root(node)

    def _define_root(self, node: fx.Node) -> None:
        storage = storage_of(node.meta["val"])
        if storage not in self.written:
            return
        if storage in self.roots:
            raise CannotTrace("a write to memory that two inputs of the graph share")
        self.roots[storage] = node
        self.current[node] = 0

    def _node(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if node.op == "get_attr":
            self.env[node] = new = self.new.graph.get_attr(str(node.target))
            new.meta.update(node.meta)
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._copy(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
                self._getitem(node)
            else:
                self.env[node] = value  # a symbolic number: rebuilt where used
            return
        if node.target in (aten.sym_size.int, aten.sym_stride.int):
            self.env[node] = value
            return
        if node.target._schema.is_mutable:
            self._write(node)
            return
        if isinstance(value, torch.Tensor) and storage_of(value) in self.written:
            if any(isinstance(a, fx.Node) and shares_storage(a, value) for a in node.args):
                self.env[node] = self._apply_view(node)
                self.current[node] = self.version[storage_of(value)]
                return
            self._copy(node)
            self._define_root(node)
            return
        if isinstance(value, (list, tuple)) and any(
            isinstance(item, torch.Tensor) and storage_of(item) in self.written for item in value
        ):
            source = node.args[0]
            if isinstance(source, fx.Node) and shares_storage(source, value[0]):
                self.env[node] = None  # unbind, split: each getitem is a view of its own
                return
        self._copy(node)

    def _getitem(self, node: fx.Node) -> None:
        source, index = cast(fx.Node, node.args[0]), cast(int, node.args[1])
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and storage_of(value) in self.written:
            if self.env[source] is None:
                self.env[node] = self._apply_view(node)
                self.current[node] = self.version[storage_of(value)]
                return
            self.env[node] = self.env[source][index]
            if storage_of(value) not in self.roots:
                self._define_root(node)
            return
        self.env[node] = self.env[source][index] if self.env[source] is not None else self._apply_view(node)

    def _copy(self, node: fx.Node) -> None:
        values = self._value([*node.args])
        args = tuple(map(self.new.argument, values))
        kwargs = {key: self._graph_arg(arg) for key, arg in node.kwargs.items()}
        new = self.new.graph.create_node("call_function", node.target, args, kwargs)
        new.meta.update(node.meta)
        value = node.meta["val"]
        self.new._track_output(new, value, given=values)
        self.env[node] = value
        for symbol, owner, dim in self.old.unbacked.found:
            if owner is node:
                self.new.unbacked.define(symbol, new, dim)
            elif owner.target is operator.getitem and owner.args[0] is node:
                piece = next(user for user in new.users if user.args[1] == owner.args[1])
                self.new.unbacked.define(symbol, piece, dim)

    def _graph_arg(self, arg: Any) -> Any:
        return self.new.argument(self._value(arg))

    def _value(self, arg: Any) -> Any:
        """The value, up to date, of an argument of an old node."""
        if isinstance(arg, fx.Node):
            return self._fresh(arg)
        if isinstance(arg, (list, tuple)):
            return [self._value(item) for item in arg]
        if isinstance(arg, dict):
            return {key: self._value(item) for key, item in arg.items()}
        return arg

    def _fresh(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return self.env[node]
        node = self._canonical(node)
        storage = storage_of(value)
        if storage not in self.written or self.current.get(node) == self.version[storage]:
            return self.env[node]
        if self.roots[storage] is node:
            return self.env[node]
        self.env[node] = self._apply_view(node)
        self.current[node] = self.version[storage]
        return self.env[node]

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.old.fake_mode, torch._C._AutoDispatchBelowAutograd(), self.new:
            return function(*args, **kwargs)

    def _apply_view(self, node: fx.Node) -> Any:
        """`node`'s view operator on the current value of what it views."""
        if node.target is operator.getitem:
            many, index = node.args
            assert isinstance(many, fx.Node)
            return self._call(cast(Any, many.target), *self._values(many.args), **self._value(many.kwargs))[
                index
            ]
        self._check_offset(node)
        return self._call(node.target, *self._values(node.args), **self._value(node.kwargs))  # type: ignore[arg-type]

    def _check_offset(self, node: fx.Node) -> None:
        """Check that `as_strided` means the same in the graph: it counts from the beginning of memory, beyond what it views.

        Raises:
            CannotTrace: an argument's memory begins anywhere; what replaces a written view has memory of its own.
        """
        offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        storage = storage_of(node.meta["val"])
        if node.target is aten.as_strided.default and storage in self.written:
            root = self.roots[storage]
            source = self._canonical(cast(fx.Node, node.args[0]))
            is_argument = root.op == "placeholder"
            if not (
                (source is root and not (is_argument and offset is not None))
                or (offset is None and not is_argument and self._is_all_of(source, root))
            ):
                raise CannotTrace("as_strided at an offset into memory that is written", even_in_parts=True)

    def _is_all_of(self, view: fx.Node, root: fx.Node) -> bool:
        """Whether a view has all elements of its root, and what replaces it in the graph has its strides."""
        node = view
        while node is not root:
            if node.target not in _OF_ALL or not isinstance(node.args[0], fx.Node):
                return False
            node = self._canonical(node.args[0])
        return expressions(self._value(view).stride()) == expressions(view.meta["val"].stride())

    def _values(self, args: tuple[Any, ...]) -> list[Any]:
        return [self._value(arg) for arg in args]

    # -- writes ------------------------------------------------------------------------------------------------

    def _write(self, node: fx.Node) -> None:
        from staticrt.frontend.functionalize.overlaps import check_apart, check_draws
        from staticrt.frontend.functionalize.writes import functional_form

        targets = written_args(node)
        if node.target._schema.name in _STAY_IN_PLACE:  # type: ignore[union-attr]
            self._write_in_place(node, targets)
            return
        check_apart(node, targets)
        args, kwargs = self._values(node.args), self._value(node.kwargs)
        results, returned = self._call(functional_form, node.target, args, kwargs)
        if len(results) != len(targets):
            raise CannotTrace(f"{node.target} writes {len(targets)} tensors")
        check_draws(node, targets, results)
        for target, result in zip(targets, results, strict=True):
            self._store(target, result)
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            storage = storage_of(value)
            if storage in self.written and any(shares_storage(target, value) for target in targets):
                self.env[node] = self._fresh(targets[0])
                self.current[node] = self.version[storage]
            else:
                self.env[node] = returned[0]
        else:
            self.env[node] = returned

    def _write_in_place(self, node: fx.Node, targets: list[fx.Node]) -> None:
        for target in map(self._canonical, targets):
            storage = storage_of(target.meta["val"])
            if target.op != "placeholder" or self.roots[storage] is not target:
                raise CannotTrace(f"{node.target} updates what is not a parameter or state of its own")
            self._store_placeholder(storage, target)
            self.done.add(self.placeholders[target])
        self._copy(node)

    def _store_placeholder(self, storage: int, root: fx.Node) -> None:
        """Write a placeholder's current value into it; later readers of aliases make their views again."""
        if self.version[storage] == self.stored.get(storage, 0):
            return
        placeholder = self.placeholders[root]
        node = self.new.graph.call_function(
            aten.copy_.default, (placeholder, self.new.argument(self.env[root]))
        )
        node.meta["val"] = root.meta["val"]
        self.done.add(placeholder)
        self.env[root] = root.meta["val"]
        self.version[storage] += 1
        self.current[root] = self.stored[storage] = self.version[storage]

    def _store(self, target: fx.Node, result: torch.Tensor) -> None:
        """Make `result` the content of `target`'s memory."""
        from staticrt.frontend.functionalize.writes import inverse_view

        old_value = target.meta["val"]
        if result.dtype != old_value.dtype:
            result = self._call(aten._to_copy.default, result, dtype=old_value.dtype)
        storage = storage_of(old_value)
        node, value = target, result
        while self.roots.get(storage) is not node:
            parent, function, args, kwargs = self._view_of(node)
            base = self._fresh(parent)
            value = (
                value if function is None else self._call(inverse_view, function, base, value, args, kwargs)
            )
            node = parent
        # Memory keeps its layout when it is written.
        memory, kept = self.env[node], node.meta["val"]
        if expressions(value.stride()) != expressions(kept.stride()):
            if node.meta.get("is_resized"):
                memory = self._call(aten.new_empty_strided.default, value, kept.shape, kept.stride())
            value = self._call(aten.copy.default, memory, value)
        self.version[storage] += 1
        self.env[node] = value
        self.current[node] = self.version[storage]

    def _view_of(self, node: fx.Node) -> tuple[fx.Node, Any, list[Any], dict[str, Any]]:
        """What a node views: the source, the view function (None: the same tensor), its other arguments."""
        own = self._canonical(node)
        if own is not node:
            return own, None, [], {}
        if node.target is operator.getitem:
            many, index = node.args
            assert isinstance(many, fx.Node)
            source = many.args[0]
            return source, many.target, [*self._values(many.args[1:]), index], self._value(many.kwargs)  # type: ignore[return-value]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CannotTrace("a write to memory of unknown origin")
        self._check_offset(node)
        source = next(a for a in node.args if isinstance(a, fx.Node) and shares_storage(a, node.meta["val"]))
        return source, node.target, self._values(node.args[1:]), self._value(node.kwargs)

    # -- ends --------------------------------------------------------------------------------------------------

    def _write_back(self) -> set[fx.Node]:
        for storage, root in self.roots.items():
            if root.op == "placeholder":
                self._store_placeholder(storage, root)
            elif self.version[storage] > 0:
                # Outputs make their view chains again from the root, so that they alias as in eager.
                self.version[storage] += 1
                self.current[root] = self.version[storage]
        return self.done

    def _output(self, out: Any) -> Any:
        old = self.nodes_of.get(id(out)) if isinstance(out, torch.Tensor) else None
        self.new.source_node = old
        return self.new.argument(out if old is None else self._fresh(self._canonical(old)))

    def _canonical(self, node: fx.Node) -> fx.Node:
        """The node whose tensor this is: an operator that writes returns its arguments."""
        while True:
            made = node.args[0] if node.target is operator.getitem else node
            target = getattr(made, "target", None)
            if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
                return node
            written = written_args(cast(fx.Node, made))
            same = [arg for arg in written if arg.meta["val"] is node.meta["val"]]
            same = same or [arg for arg in written if shares_storage(arg, node.meta["val"])]
            if not same:
                return node
            node = same[0]


def written_args(node: fx.Node) -> list[fx.Node]:
    """The nodes an operator writes into, in schema order (lists flattened)."""
    found: list[fx.Node] = []
    schema = node.target._schema  # type: ignore[union-attr]
    for index, arg in enumerate(schema.arguments):
        if arg.alias_info is None or not arg.alias_info.is_write:
            continue
        value = node.args[index] if index < len(node.args) else node.kwargs.get(arg.name)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, fx.Node):
                found.append(item)
    return found
