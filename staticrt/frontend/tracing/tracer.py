"""Record one run of a model over fake tensors as a graph.

`torch.export` traces twice (a pre-dispatch graph, then AOT's functional one) and through several layers of modes.
Here one dispatch mode sits on a `FakeTensorMode`, below autograd: there every operator arrives whole, composite
ones included, so one run gives the graph. Real tensors (parameters, buffers, globals) become placeholders when the model
first uses them; the module is never changed. Symbolic sizes need no tracing of their own: an
argument's sympy expression is turned into nodes where it is used.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._library import simple_registry
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_leaves

from staticrt import torch_private
from staticrt.frontend import budget
from staticrt.frontend.guards.impure_calls import Watcher
from staticrt.frontend.quick_graph import QuickGraph
from staticrt.frontend.reasons import CannotTrace, layer_of, stack_trace
from staticrt.frontend.tracing import autocast, composites, inplace_views, maybe_views
from staticrt.frontend.tracing.escapes import values_of
from staticrt.frontend.tracing.graph_inputs import GraphInputs
from staticrt.frontend.tracing.size_tensors import SizeTensors
from staticrt.frontend.tracing.symbols import SymbolNodes
from staticrt.frontend.tracing.traced_tensors import TracedTensors
from staticrt.frontend.tracing.unbacked_symbols import UnbackedSymbols
from staticrt.frontend.tracing.versions import Versions
from staticrt.native import _C
from staticrt.ops import draws
from staticrt.shapes import fake_memo
from staticrt.shapes.fake_results import new
from staticrt.shapes.fake_rules import fake_by_rule

aten = torch.ops.aten

# Ask a tensor for a property: nothing to record.
_QUERIES = frozenset({"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::is_contiguous"})
# Operators that return views although their schemas declare copies: writing a piece must not change the source.
_SECRET_VIEWS = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
# Of an operator's node, where autograd ran: recorded in the backward, by the autograd node of this number; recorded
# while gradients were off; recorded in the checkpoint of this number.
BACKWARD, AUTOGRAD_NODE, NO_GRAD, CHECKPOINT = "partitioner_tag", "autograd_node", "no_grad", "checkpoint"
MARKS = frozenset({BACKWARD, AUTOGRAD_NODE, NO_GRAD, CHECKPOINT})
# Names of regions in a profile.
_LABELS = frozenset({"profiler::_record_function_enter_new", "profiler::_record_function_exit"})


def expressions(numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes or strides of a fake tensor, to compare without guards."""
    return tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The recording mode. Use inside its fake mode: `with fake_mode, below_autograd, tracer: model(...)`.

    Args:
        fake_mode: a `TraceFakeMode`.
        watcher: watches model code; paused while the tracer works.
        parent: the tracer of the graph around a control-flow body.
        autograd: the mode lies beneath autograd, which runs; else autograd is switched off around it.
        control_flow: records a call of a higher-order operator; None: such calls are refused.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        fake_mode: Any,
        watcher: Watcher | None = None,
        parent: Tracer | None = None,
        autograd: bool = False,
        control_flow: Callable[[Tracer, Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = fake_mode
        self.shape_env = fake_mode.sizes
        self.graph = QuickGraph()
        self.tensors = TracedTensors()
        self.inputs = GraphInputs(self.graph, fake_mode, self.tensors, is_body=parent is not None)
        self.symbols = SymbolNodes(self.graph, self.inputs.bind_symbol)
        self.mutated: set[fx.Node] = set()
        self.writes = False  # an operator that writes was recorded
        self.maybe_views: list[maybe_views.MaybeView] = []
        self.random = False
        self.decided = 0  # checks of what data decided
        self.grad_enabled = torch.is_grad_enabled()
        self.source_node: fx.Node | None = None  # when re-tracing a graph: whose line and marks to keep
        self.marks: Callable[[], dict[str, Any]] = dict  # added to the `meta` of each operator's node
        self.parts: list[Any] = []  # what checkpoints read, until a backward begins
        self.layers: dict[int, str] = {} if parent is None else parent.layers  # for `reasons.layer_of`
        self.size_tensors = SizeTensors()
        self.unbacked = UnbackedSymbols(self.graph, self.symbols, self.shape_env)
        self.watcher = watcher
        self.parent = parent
        self.children: list[Tracer] = []  # of the bodies in its graph
        if parent is not None:
            parent.children.append(self)
        self.autograd = autograd
        self.control_flow = control_flow
        self.versions: Versions = Versions() if parent is None else parent.versions
        self.bodies: dict[str, Any] = {}  # what get_attr nodes name: graphs, and TorchScript objects
        self._objects: dict[int, fx.Node] = {}
        self._deciders: list[Any] = []

    def __enter__(self) -> Tracer:
        # The inputs of a control-flow body have no values yet that could decide anything.
        self._deciders.append(self.shape_env.decider)
        if self.parent is not None:
            self.shape_env.decider = None
        _push_mode(self)  # torch's own `__enter__` also tells Dynamo in all threads that a mode is active
        return self

    def __exit__(self, *exc: object) -> None:
        _pop_mode()
        self.shape_env.decider = self._deciders.pop()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Dynamo meets no recording mode; its wrapper would cost as much as a small operator

    def owned(self) -> Iterator[Any]:
        """Each reference that the tracer and those of its bodies have to a fake tensor or symbolic number."""
        yield from self.tensors
        yield from self.tensors.unread.values()
        yield from (lifted.fake for lifted in self.inputs.lifted.values())
        yield from (value for value, _node in self.inputs.outer.values())
        yield from values_of(self.graph)
        for child in self.children:
            yield from child.owned()

    def _lift_literal(self, real: torch.Tensor) -> None:
        outermost = self
        while outermost.parent is not None:
            outermost = outermost.parent
        outermost.inputs.lift(real).literal = True

    # -- recording ---------------------------------------------------------------------------------------------

    # `__torch_dispatch__` is in C++ (`csrc/bindings/bind_dispatch_mode.cpp`): it answers for devices and calls this.
    def dispatch_in_python(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(_is_wrapper(type_) for type_ in types):
            return NotImplemented  # what it does with the tensors that it wraps arrives here next
        if isinstance(func, torch._ops.OpOverload) and func._schema.name in _QUERIES:
            return func(*args, **(kwargs or {}))
        is_saved = func is aten.detach.default and self.autograd and not torch_private.is_dispatched()
        watched = self.watcher is not None and self.watcher.pause()
        try:
            budget.check()
            if not self.autograd:
                return self._dispatch(func, args, kwargs or {})
            with torch._C._AutoDispatchBelowAutograd():
                detached = self._detached(args[0]) if is_saved else None
                return self._dispatch(func, args, kwargs or {}) if detached is None else detached
        except Exception:
            self.fake_mode.raised = str(func)
            raise
        finally:
            if watched:
                self.watcher.resume()  # type: ignore[union-attr]

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(func, torch._ops.OpOverload):
            if self.control_flow is None:
                raise CannotTrace(f"higher-order operator {func.name()}")
            return self.control_flow(self, func, args, kwargs)
        if func._schema.name in _LABELS:
            with _disable_current_modes():
                return func(*args, **kwargs)
        if torch.is_grad_enabled() and not self.grad_enabled:
            raise CannotTrace("the model turns gradients on")
        if func is aten.detach_.default and self._fake(args[0]).requires_grad:
            raise CannotTrace("the model detaches a tensor in place", even_in_parts=True)
        if func is aten.lift_fresh.default and _is_literal(args[0]):
            func = aten.lift_fresh_copy.default
            self._lift_literal(args[0])
        number = self.size_tensors.number_of(func, args, kwargs)
        if number is not None:
            if func is aten._local_scalar_dense.default:
                return number
            out = self._dispatch(aten.scalar_tensor.default, (number,), {"dtype": torch.int64})
            self.size_tensors.keep(out, number)
            return out
        kind = composites.kind(func, args, kwargs)
        if kind is composites.Kind.EXPAND:
            return self._expand(func, args, kwargs)
        special = composites.rewrite(func, args)
        if special is not None:
            with self, autocast.for_parts():
                return special(self, *args, **kwargs)
        fake_args = self._fake(args)
        fake_kwargs = self._fake(kwargs)
        if torch.Tag.inplace_view in func.tags:
            return inplace_views.record(self, func, fake_args, fake_kwargs)
        decider = self.shape_env.decider
        if decider is not None and func is aten._local_scalar_dense.default:
            answer = decider.truth_of(func, fake_args[0])
            if answer is not None:
                return answer
        known = self.unbacked.pending()
        out = fake_by_rule(self.fake_mode, func, fake_args, fake_kwargs)
        outs = [
            fake_kwargs[arg.name]
            for arg in func._schema.arguments
            if arg.is_out and isinstance(fake_kwargs.get(arg.name), torch.Tensor)
        ]
        layouts = [(target.shape, target.stride()) for target in outs]
        key = None
        if out is None and not autocast.is_on():
            key = fake_memo.key_of(func, fake_args, fake_kwargs)
            out = None if key is None else fake_memo.recall(self.fake_mode, *key)
        if out is None:
            # Meta functions call operators on symbolic sizes; their C++ kernels take only concrete ones.
            in_place = func._schema.is_mutable and func._opname.endswith("_")  # `__lshift__` writes nothing
            first = fake_args[0] if fake_args and in_place else None
            sizes = first.shape if isinstance(first, torch.Tensor) else None
            with enable_python_dispatcher(), inplace_views.resizing(outs):
                out = func(*fake_args, **fake_kwargs)
            # torch's rules of many operators let what is written grow, which kernels refuse.
            if sizes is not None and isinstance(out, torch.Tensor) and out.shape != sizes:
                raise RuntimeError(
                    f"output with shape {[*sizes]} doesn't match the broadcast shape {[*out.shape]}"
                )
            if kind is composites.Kind.KEEP and composites.aliases_inputs(out, fake_args, fake_kwargs):
                return self._expand(func, args, kwargs)
            if key is not None and self.unbacked.pending() == known:
                fake_memo.remember(self.fake_mode, *key, out)
        for target, (size, strides) in zip(outs, layouts, strict=True):
            if expressions(target.shape) == expressions(size):
                # torch's rule of `sort` gives it other strides, which eager does not.
                if expressions(target.stride()) != expressions(strides):
                    target.as_strided_(size, strides)
            elif 0 not in size or self._is_shared(target):
                raise CannotTrace(
                    "out= of another size, which eager resizes, has elements, is an argument or has views",
                    even_in_parts=True,
                )
            else:  # what its node has recorded has the new size, too
                self.tensors.nodes[id(target)].meta["is_resized"] = True
        if fake_kwargs.get("generator") is not None:
            raise CannotTrace("random numbers of a generator of their own")
        if func in _SECRET_VIEWS:
            func = _SECRET_VIEWS[func]
            out = [new(self.fake_mode, o.shape, o, o.stride()) for o in out]
        self.record(func, fake_args, fake_kwargs, out, known)
        if func._schema.is_mutable:
            self.versions.count(func, args, kwargs)
        return out

    def _detached(self, tensor: torch.Tensor) -> Any:
        """What autograd saves of a tensor, or finds saved, or some tensor's `.data`. None: it is recorded as an operator.

        What it finds saved stands for the tensor itself. What it saves gets a node if an operator reads it.
        """
        saved = self.tensors.unread.get(id(tensor))
        source = tensor if saved is None else saved
        node = self.tensors.nodes.get(id(source))
        if node is None or node.op != "call_function":
            return None
        fake = fake_by_rule(self.fake_mode, aten.detach.default, (tensor,), {})
        if fake is None:
            return None
        if saved is not None and torch_private.running_node() >= 0:
            self.tensors.track(fake, node)
        else:
            self.tensors.leave_unread(fake, source)
        return fake

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether a fake tensor's memory comes from outside, or other tensors have it too."""
        memory = tensor.untyped_storage()._cdata
        return any(
            isinstance(x, torch.Tensor)
            and x.untyped_storage()._cdata == memory
            and (x is not tensor or node.op == "placeholder")
            for node in self.graph.nodes
            for x in [node.meta.get("val")]
        )

    def _expand(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self, autocast.for_parts():
            out = None
            if func is aten.contiguous.default:
                out = maybe_views.contiguous(
                    self._fake(args[0]), kwargs.get("memory_format", torch.contiguous_format)
                )
            if out is None:
                out = func.decompose(*args, **kwargs)
        if out is NotImplemented:
            raise CannotTrace(f"operator {func} has no decomposition")
        if func in maybe_views.MAYBE_VIEWS:
            found = maybe_views.find(func, self._fake(args[0]), out, self.argument)
            if found is not None:
                self.maybe_views.append(found)
        return out

    def _fake(self, value: Any) -> Any:
        """Arguments with real tensors replaced by their fakes."""
        if isinstance(value, torch.Tensor):
            return value if id(value) in self.tensors.nodes else self._fake_tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._fake(item) for item in value]) if value else value
        if isinstance(value, dict):
            return {key: self._fake(item) for key, item in value.items()}
        return value

    def _fake_tensor(self, value: torch.Tensor) -> torch.Tensor:
        if id(value) in self.tensors.unread:
            source = self.tensors.unread.pop(id(value))
            self.record(aten.detach.default, (source,), {}, value, self.unbacked.pending())
            return value
        if isinstance(value, FakeTensor):
            if self.parent is None:
                raise CannotTrace("a tensor made outside of the recorded operators")
            self.inputs.take_outer(id(value), self.parent._fake(value))
            return value
        if self.parent is not None:
            fake: torch.Tensor = self.parent._fake(value)
            if id(fake) not in self.tensors.nodes:
                self.inputs.take_outer(id(fake), fake)
            return fake
        return self.inputs.lift(value).fake

    def argument(self, value: Any) -> Any:
        """The graph form of an operator's argument."""
        if isinstance(value, fx.Node):
            return value
        if isinstance(value, torch.Tensor):
            node = self.tensors.nodes.get(id(value))
            return node if node is not None else self.tensors.nodes[id(self._fake_tensor(value))]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbols.lookup(value)
        if isinstance(value, torch.ScriptObject):
            return self._object(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        return value

    def _object(self, value: torch.ScriptObject) -> fx.Node:
        """A node that gives a TorchScript object, such as the packed weight of a quantised layer."""
        found = self._objects.get(id(value))
        if found is None:
            name = f"object_{len(self._objects)}"
            self.bodies[name] = value
            found = self.graph.get_attr(name)
            found.meta["val"] = value
            self._objects[id(value)] = found
        return found

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, known: int) -> fx.Node:
        """A node for a call that gave `out`; `known` symbols that data decides had been pending before it."""
        func = composites.scalar_overload(func, args)
        schema = func._schema
        node_args = tuple(self.argument(arg) for arg in args)
        node_kwargs = {key: self.argument(arg) for key, arg in kwargs.items()}
        node = self.graph.create_node("call_function", func, node_args, node_kwargs)
        self.annotate(node)
        node.meta["val"] = out
        if schema.is_mutable:
            self.writes = True
        if self.autograd and func is aten.clone.default:
            found = maybe_views.of_clone(self._fake(args[0]), out, kwargs.get("memory_format"))
            self.maybe_views += [] if found is None else [found]
        if draws(node):
            self.random = True
        self._track_output(node, out, given=args if not schema.is_mutable else ())
        self.unbacked.bind_fresh(node, out, known)
        return node

    def annotate(self, node: fx.Node) -> None:
        """Keep the model line of a new node, and its marks."""
        if self.source_node is not None:
            trace = self.source_node.meta.get("stack_trace")
            layer = self.source_node.meta.get("nn_module_stack")
            node.meta.update(
                (key, self.source_node.meta[key]) for key in MARKS & self.source_node.meta.keys()
            )
        else:
            node.meta.update(self.marks())
            if self.autograd and not torch.is_grad_enabled():
                node.meta[NO_GRAD] = True
            frame = sys._getframe(2)
            trace, layer = stack_trace(frame), layer_of(frame, self.layers) if self.layers else None
        if trace is not None:
            node.meta["stack_trace"] = trace
        if layer:
            node.meta["nn_module_stack"] = layer

    def _track_output(self, node: fx.Node, out: Any, given: Any = ()) -> None:
        """Note the node of each result of a call; of several results, one that is an argument (`given`) keeps its own."""
        if isinstance(out, torch.Tensor):
            self.tensors.track(out, node)
        elif isinstance(out, (tuple, list)):
            arguments = {id(leaf) for leaf in tree_leaves(given)}
            for index, item in enumerate(out):
                if isinstance(item, (torch.Tensor, torch.SymInt)):
                    getitem = self.graph.call_function(operator.getitem, (node, index))
                    getitem.meta["val"] = item
                    for key in ("stack_trace", "nn_module_stack"):
                        if key in node.meta:
                            getitem.meta[key] = node.meta[key]
                    if isinstance(item, torch.Tensor) and id(item) not in arguments:
                        self.tensors.track(item, getitem)


_C.answer_devices(
    Tracer,
    torch.ops.prim.device.default,
    torch.device("meta"),
    FakeTensor,
    simple_registry.find_torch_dispatch_rule,
)


def current_tracer() -> Tracer:
    """The tracer that is recording in this thread."""
    return next(mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, Tracer))


@functools.cache
def _is_wrapper(type_: type) -> bool:
    """Whether tensors of a class wrap others, for which it translates each operator."""
    return hasattr(type_, "__tensor_flatten__") and hasattr(type_, "__tensor_unflatten__")


def _is_literal(tensor: torch.Tensor) -> bool:
    """Whether each call makes a lifted tensor anew, and may write it; else it is memory of others, as of an array."""
    storage: Any = tensor.untyped_storage()
    return bool(storage.resizable())
