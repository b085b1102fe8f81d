"""The inputs of a recorded graph, each a placeholder: arguments, real tensors, values from outside of a body."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch.utils._mode_utils import no_dispatch

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.traced_tensors import TracedTensors
from staticrt.shapes.fake_results import fake_of
from staticrt.shapes.size_env import SizeEnv

aten = torch.ops.aten


@dataclasses.dataclass(eq=False)
class Lifted:
    """A real tensor the model used, its fake, and its placeholder; a literal is made anew by the model in each call."""

    value: torch.Tensor
    fake: torch.Tensor
    node: fx.Node
    literal: bool = False


class GraphInputs:
    """The placeholders of one graph.

    Args:
        fake_mode: a `TraceFakeMode`.
        tensors: of the trace; the fakes of inputs join them.
        is_body: the graph is a body of control flow, in the graph of another tracer.
    """

    def __init__(self, graph: fx.Graph, fake_mode: Any, tensors: TracedTensors, is_body: bool) -> None:
        self._graph = graph
        self._fake_mode = fake_mode
        self._tensors = tensors
        self._is_body = is_body
        self.user: list[fx.Node] = []  # of the caller's leaves
        self.lifted: dict[int, Lifted] = {}  # by id of the real tensor
        self.sources: dict[Any, tuple[fx.Node, str, int]] = {}  # symbol -> placeholder, property, dim
        self.outer: dict[Any, tuple[Any, fx.Node]] = {}  # what a body uses from outside: value, placeholder
        self.on_lift: Any = None  # called with each real tensor that the model uses, before its first use
        self._storages: dict[int, torch.UntypedStorage] = {}  # real storage -> its fake

    def add_user(self, fake: Any, name: str) -> fx.Node:
        """A placeholder for one of the caller's leaves: a fake tensor or a symbolic number."""
        node = self._add(name, fake)
        self.user.append(node)
        return node

    def lift(self, real: torch.Tensor) -> Lifted:
        """The placeholder of a real tensor.

        Raises:
            CannotTrace: a graph does not read such a tensor.
        """
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
        fake = self._fake_of(real)
        first = self.user[0] if self.user else next(iter(self._graph.nodes), self._graph._root)
        with self._graph.inserting_before(first):
            node = self._add(f"lifted_{len(self.lifted)}", fake)
        lifted = self.lifted[id(real)] = Lifted(real, fake, node)
        return lifted

    def take_outer(self, key: Any, value: Any) -> fx.Node:
        """A placeholder for something that a control-flow body uses from outside."""
        first = next((node for node in self._graph.nodes if node.op != "placeholder"), self._graph._root)
        with self._graph.inserting_before(first):
            node = self._add(f"outer_{len(self.outer)}", value)
        self.outer[key] = (value, node)
        return node

    def take_over(self, others: GraphInputs, new: dict[fx.Node, fx.Node]) -> None:
        """The inputs of a graph that this one is a copy of.

        Args:
            new: the placeholder here, by the one there.
        """
        self.user = [new[node] for node in others.user]
        self.sources = {
            symbol: (new[node], prop, dim) for symbol, (node, prop, dim) in others.sources.items()
        }
        self.lifted = {
            key: dataclasses.replace(lifted, node=new[lifted.node]) for key, lifted in others.lifted.items()
        }
        self.outer = {key: (value, new[node]) for key, (value, node) in others.outer.items()}

    def bind_symbol(self, symbol: Any) -> fx.Node | None:
        """A node that gives a symbol; None: the symbol is no size, stride or value of an input."""
        source = self.sources.get(symbol)
        if source is None:
            if not self._is_body:
                return None
            sizes = self._fake_mode.sizes
            if isinstance(sizes, SizeEnv):
                sizes.give_up("a body of control flow that uses sizes from outside")
            return self.take_outer(symbol, sizes.create_symintnode(symbol, hint=None))
        placeholder, prop, dim = source
        if prop == "value":
            return placeholder
        target = aten.sym_size.int if prop == "size" else aten.sym_stride.int
        node = self._graph.call_function(target, (placeholder, dim))
        value = placeholder.meta["val"]
        node.meta["val"] = value.shape[dim] if prop == "size" else value.stride(dim)
        return node

    def check_gradients(self, arguments: Iterable[tuple[Any, Any]], outputs: Sequence[Any] | None) -> None:
        """Check that no tensor has begun or ceased to require gradients where the caller or autograd would see it.

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
        # Without gradients, temporary tensors are not differentiated: only results matter.
        made = self._tensors if torch.is_grad_enabled() else outputs
        for tensor in chain(made, outputs):
            if not isinstance(tensor, torch.Tensor) or id(tensor) in known:
                continue
            if tensor.requires_grad or getattr(tensor, "_is_param", False):
                raise CannotTrace(
                    "the model makes a tensor that requires gradients, or a parameter", "", even_in_parts=True
                )

    def _add(self, name: str, value: Any) -> fx.Node:
        node = self._graph.placeholder(name)
        node.meta["val"] = value
        if isinstance(value, torch.Tensor):
            self._tensors.track(value, node)
        return node

    def _fake_of(self, real: torch.Tensor) -> torch.Tensor:
        """A fake with constant sizes; fakes share storage where the real tensors do."""
        own = real.untyped_storage()
        with no_dispatch():
            storage = self._storages.get(own._cdata)
            if storage is None:
                storage = self._storages[own._cdata] = torch.UntypedStorage(own.nbytes(), device="meta")  # type: ignore[no-untyped-call]
            meta = torch.empty(0, dtype=real.dtype, device="meta")
            meta.set_(storage, real.storage_offset(), real.shape, real.stride())
            fake = fake_of(self._fake_mode, meta, real.device)
            # matmul folds or not, and so orders its result's strides, by what requires a gradient.
            return fake.requires_grad_(real.requires_grad)
