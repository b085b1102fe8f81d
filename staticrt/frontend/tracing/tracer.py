"""Record one run of a model over fake tensors as a graph.

`torch.export` traces twice (a pre-dispatch graph, then AOT's functional one) and through several layers of modes.
Here one dispatch mode sits on a `FakeTensorMode`, below autograd: there every operator arrives whole, composite
ones included, so one run gives the graph. Real tensors (parameters, buffers, globals) are met as the model uses
them and become placeholders; the module is never changed. Symbolic sizes need no tracing of their own: an
argument's sympy expression is turned into nodes where it is used.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
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
from staticrt.frontend.reasons import SETS_DATA, CannotTrace, layer_of, stack_trace
from staticrt.frontend.tracing import autocast, composites, inplace_views, maybe_views
from staticrt.frontend.tracing.escapes import values_of
from staticrt.frontend.tracing.symbols import SymbolNodes
from staticrt.frontend.tracing.trace_tensor import show_as_plain
from staticrt.frontend.tracing.unbacked_symbols import UnbackedSymbols
from staticrt.frontend.tracing.versions import Versions
from staticrt.frontend.weak import weakly
from staticrt.native import _C
from staticrt.ops import draws
from staticrt.shapes import fake_memo
from staticrt.shapes.fake_results import new
from staticrt.shapes.fake_rules import fake_by_rule
from staticrt.shapes.size_env import SizeEnv

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


@dataclasses.dataclass(eq=False)
class Lifted:
    """A real tensor the model used, its fake, and its placeholder; a literal is made anew by the model in each call."""

    value: torch.Tensor
    fake: torch.Tensor
    node: fx.Node
    literal: bool = False


def _expressions(tensor: Any) -> tuple[Any, ...]:
    """A fake tensor's sizes, to compare without guards."""
    if not isinstance(tensor, torch.Tensor):
        return ()
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in tensor.shape)


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
        self.symbols = SymbolNodes(self.graph, weakly(self._bind_symbol))
        self.lifted: dict[int, Lifted] = {}
        self.mutated: set[fx.Node] = set()
        self.writes = False  # an operator that writes was recorded
        self.maybe_views: list[maybe_views.MaybeView] = []
        self.random = False
        self.raised = ""  # the last operator that raised
        self.decided = 0  # checks of what data decided
        self.user_placeholders: list[fx.Node] = []
        self.sources: dict[Any, tuple[fx.Node, str, int]] = {}  # symbol -> placeholder, property, dim
        self.grad_enabled = torch.is_grad_enabled()
        self.source_node: fx.Node | None = None  # when re-tracing a graph: whose line and marks to keep
        self.marks: Callable[[], dict[str, Any]] = dict  # added to the `meta` of each operator's node
        self.parts: list[Any] = []  # what checkpoints read, until a backward begins
        self.layers: dict[int, str] = {} if parent is None else parent.layers  # for `reasons.layer_of`
        self.unbacked = UnbackedSymbols(self.graph, self.symbols, self.shape_env)
        self._storages: dict[int, torch.UntypedStorage] = {}  # real storage -> its fake
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[tuple[torch.Tensor, int]] = []  # tensors with a node, their storages
        # By id of a detached tensor without a node: what it was detached from.
        self._unread: dict[int, torch.Tensor] = {}
        self._memories: set[int] = set()  # of those, in any mode
        self._of_inference: set[int] = set()  # of those, made where the model has turned inference mode on
        self.watcher = watcher
        self.parent = parent
        self.children: list[Tracer] = []  # of the bodies in its graph
        if parent is not None:
            parent.children.append(self)
        self.autograd = autograd
        self.control_flow = control_flow
        self.on_lift: Any = None  # called with each real tensor that the model uses, before its first use
        self.versions: Versions = Versions() if parent is None else parent.versions
        self.outer: dict[
            Any, tuple[Any, fx.Node]
        ] = {}  # what a body uses from outside: value, own placeholder
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

    # -- inputs ------------------------------------------------------------------------------------------------

    def add_user(self, fake: Any, name: str) -> fx.Node:
        """A placeholder for one of the caller's leaves: a fake tensor or a symbolic number."""
        node = self.graph.placeholder(name)
        node.meta["val"] = fake
        self.user_placeholders.append(node)
        if isinstance(fake, torch.Tensor):
            self.track(fake, node)
        return node

    def track(self, tensor: torch.Tensor, node: fx.Node) -> None:
        show_as_plain(tensor)
        self._nodes[id(tensor)] = node
        memory = tensor.untyped_storage()._cdata
        self._alive.append((tensor, memory))
        if memory not in self._memories:
            self._memories.add(memory)
            if torch.is_inference_mode_enabled() and node.op != "placeholder":
                self._of_inference.add(memory)

    def is_inference(self, value: Any) -> bool:
        """Whether an inference tensor is what eager would give for a fake tensor."""
        return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in self._of_inference

    def owned(self) -> Iterator[Any]:
        """Each reference that the tracer and those of its bodies have to a fake tensor or symbolic number."""
        yield from (tensor for tensor, _storage in self._alive)
        yield from self._unread.values()
        yield from (lifted.fake for lifted in self.lifted.values())
        yield from (value for value, _node in self.outer.values())
        yield from values_of(self.graph)
        for child in self.children:
            yield from child.owned()

    def check_storages(self) -> None:
        """No tensor has been given other memory behind the dispatcher's back, as `x.data = y` does.

        Raises:
            CannotTrace: one has.
        """
        if any(tensor.untyped_storage()._cdata != storage for tensor, storage in self._alive):
            raise CannotTrace(SETS_DATA, "", even_in_parts=True)

    def check_gradients(self, arguments: Iterable[tuple[Any, Any]], outputs: Sequence[Any] | None) -> None:
        """No tensor has begun to require gradients, or ceased to, where the caller or autograd would see it.

        Args:
            arguments: fake and real arguments.
            outputs: the graph's outputs. None: autograd ran, so that only inputs are looked at.

        Raises:
            CannotTrace: one has.
        """
        inputs = [*arguments, *((lifted.fake, lifted.value) for lifted in self.lifted.values())]
        for fake, real in inputs:
            if isinstance(fake, torch.Tensor) and fake.requires_grad is not real.requires_grad:
                raise CannotTrace(
                    "the model changes whether a tensor requires gradients", "", even_in_parts=True
                )
        if outputs is None:
            return
        known = {id(fake) for fake, _real in inputs}
        # Without gradients, what is made for the call alone is not differentiated: only results are seen.
        made = (tensor for tensor, _storage in self._alive) if torch.is_grad_enabled() else iter(outputs)
        for tensor in chain(made, outputs):
            if not isinstance(tensor, torch.Tensor) or id(tensor) in known:
                continue
            if tensor.requires_grad or getattr(tensor, "_is_param", False):
                raise CannotTrace(
                    "the model makes a tensor that requires gradients, or a parameter", "", even_in_parts=True
                )

    def lift(self, real: torch.Tensor) -> Lifted:
        """The placeholder of a real tensor."""
        found = self.lifted.get(id(real))
        if found is not None:
            return found
        if type(real) not in (torch.Tensor, torch.nn.Parameter):
            raise CannotTrace(f"a tensor subclass, {type(real).__name__}")
        if real.layout != torch.strided or real.is_quantized or real.is_nested:
            raise CannotTrace(f"a tensor of layout {real.layout}")
        if real.is_conj() or real.is_neg():
            raise CannotTrace("a tensor that is a lazy conjugate or negative")
        if self.on_lift is not None:
            self.on_lift(real)
        fake = self._fake_of_real(real)
        anchor = self.user_placeholders[0] if self.user_placeholders else None
        first = anchor if anchor is not None else next(iter(self.graph.nodes), None)
        if first is None:
            node = self.graph.placeholder(f"lifted_{len(self.lifted)}")
        else:
            with self.graph.inserting_before(first):
                node = self.graph.placeholder(f"lifted_{len(self.lifted)}")
        node.meta["val"] = fake
        lifted = self.lifted[id(real)] = Lifted(real, fake, node)
        self.track(fake, node)
        return lifted

    def _lift_literal(self, real: torch.Tensor) -> None:
        outermost = self
        while outermost.parent is not None:
            outermost = outermost.parent
        outermost.lift(real).literal = True

    def _fake_of_real(self, real: torch.Tensor) -> torch.Tensor:
        """A fake with constant sizes; fakes share storage where the real tensors do."""
        from torch.utils._mode_utils import no_dispatch

        own = real.untyped_storage()
        with no_dispatch():
            storage = self._storages.get(own._cdata)
            if storage is None:
                storage = self._storages[own._cdata] = torch.UntypedStorage(own.nbytes(), device="meta")  # type: ignore[no-untyped-call]
            meta = torch.empty(0, dtype=real.dtype, device="meta")
            meta.set_(storage, real.storage_offset(), real.shape, real.stride())
            fake = FakeTensor(self.fake_mode, meta, real.device)
            # matmul folds or not, and so orders its result's strides, by what requires a gradient.
            return fake.requires_grad_(real.requires_grad)

    def _bind_symbol(self, symbol: Any) -> fx.Node | None:
        source = self.sources.get(symbol)
        if source is None:
            if self.parent is None:
                return None
            if isinstance(self.shape_env, SizeEnv):
                self.shape_env.give_up("a body of control flow that uses sizes from outside")
            return self._take_outer(symbol, self.shape_env.create_symintnode(symbol, hint=None))
        placeholder, prop, dim = source
        if prop == "value":
            return placeholder
        target = aten.sym_size.int if prop == "size" else aten.sym_stride.int
        node = self.graph.call_function(target, (placeholder, dim))
        value = placeholder.meta["val"]
        node.meta["val"] = value.shape[dim] if prop == "size" else value.stride(dim)
        return node

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
            self.raised = str(func)
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
        known = self.unbacked.pending()
        out = fake_by_rule(self.fake_mode, func, fake_args, fake_kwargs)
        outs = [
            fake_kwargs[arg.name] for arg in func._schema.arguments if arg.is_out and arg.name in fake_kwargs
        ]
        sizes_before = [_expressions(target) for target in outs]
        key = None
        if out is None and not autocast.is_on():
            key = fake_memo.key_of(func, fake_args, fake_kwargs)
            out = None if key is None else fake_memo.recall(self.fake_mode, *key)
        if out is None:
            # Meta functions call operators on symbolic sizes; their C++ kernels take only concrete ones.
            with enable_python_dispatcher():
                out = func(*fake_args, **fake_kwargs)
            if kind is composites.Kind.KEEP and composites.aliases_inputs(out, fake_args, fake_kwargs):
                return self._expand(func, args, kwargs)
            if key is not None and self.unbacked.pending() == known:
                fake_memo.remember(self.fake_mode, *key, out)
        for target, size in zip(outs, sizes_before, strict=True):
            if _expressions(target) != size and self._is_shared(target):
                raise CannotTrace(
                    "out= of another size, which eager resizes, is an argument or has views",
                    even_in_parts=True,
                )
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
        saved = self._unread.get(id(tensor))
        source = tensor if saved is None else saved
        node = self._nodes.get(id(source))
        if node is None or node.op != "call_function":
            return None
        fake = fake_by_rule(self.fake_mode, aten.detach.default, (tensor,), {})
        if fake is None:
            return None
        if saved is not None and torch_private.running_node() >= 0:
            self.track(fake, node)
        else:
            show_as_plain(fake)
            self._alive.append((fake, fake.untyped_storage()._cdata))
            self._unread[id(fake)] = source
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
            return value if id(value) in self._nodes else self._fake_tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)([self._fake(item) for item in value]) if value else value
        if isinstance(value, dict):
            return {key: self._fake(item) for key, item in value.items()}
        return value

    def _fake_tensor(self, value: torch.Tensor) -> torch.Tensor:
        if id(value) in self._unread:
            source = self._unread.pop(id(value))
            self.record(aten.detach.default, (source,), {}, value, self.unbacked.pending())
            return value
        if isinstance(value, FakeTensor):
            if self.parent is None:
                raise CannotTrace("a tensor made outside of the recorded operators")
            self._take_outer(id(value), self.parent._fake(value))
            return value
        if self.parent is not None:
            fake: torch.Tensor = self.parent._fake(value)
            if id(fake) not in self._nodes:
                self._take_outer(id(fake), fake)
            return fake
        return self.lift(value).fake

    def _take_outer(self, key: Any, value: Any) -> fx.Node:
        """A placeholder for something a control-flow body uses from outside."""
        first = next(iter(self.graph.nodes), None)
        place = next((node for node in self.graph.nodes if node.op != "placeholder"), None)
        with self.graph.inserting_before(place) if place is not None else self.graph.inserting_after(first):
            node = self.graph.placeholder(f"outer_{len(self.outer)}")
        node.meta["val"] = value
        self.outer[key] = (value, node)
        if isinstance(value, torch.Tensor):
            self.track(value, node)
        return node

    def argument(self, value: Any) -> Any:
        """The graph form of an operator's argument."""
        if isinstance(value, fx.Node):
            return value
        if isinstance(value, torch.Tensor):
            node = self._nodes.get(id(value))
            return node if node is not None else self._nodes[id(self._fake_tensor(value))]
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
        if draws(func, node.args, node.kwargs):
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
            self.track(out, node)
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
                        self.track(item, getitem)


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
