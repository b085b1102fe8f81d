"""Second derivatives of a compiled region: its graph runs again, eagerly, on the inputs of the call.

AOTAutograd's backward is a plain function of saved activations, which have forgotten what they were computed from:
it refuses `create_graph=True`. Each call therefore keeps references to its inputs; a backward that builds a graph
runs the region once more with autograd on, and differentiates that. Unused it costs the references.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from staticrt import _compat
from staticrt.native import _C


@dataclasses.dataclass
class RegionCall:
    """What one call of a region needs to run again.

    Args:
        inputs: as given; copies of those that the region writes, unless nothing depends on what they held.
        versions: of tensors that the region does not write, when the call began; None elsewhere.
        random_state: of the CPU generator when the call began, if the region draws from it.
    """

    inputs: list[Any]
    versions: list[int | None]
    random_state: torch.Tensor | None


class Replay:
    """Differentiates a region twice.

    Args:
        function: the region on flat inputs, as Dynamo captured it.
        name: for messages.

    Attributes:
        written: which inputs the region writes; known once it is compiled.
        unread: inputs whose values no result depends on, though the region writes them.
        random: whether the region draws random numbers; known once it is compiled.
        graphs: the option: captured graphs must know which backwards are due.
    """

    def __init__(self, function: Callable[..., Any], name: str, unread: frozenset[int] = frozenset()) -> None:
        self._function = function
        self.unread = unread
        self._name = name
        self._autocast = [
            (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
        ]
        self._current = threading.local()
        self._slots: list[tuple[str, int]] = []
        self.written: list[bool] = []
        self.random = False
        self.graphs: Any = False  # the option

    def unneeded(self, count: int) -> tuple[int, ...]:
        """Inputs whose gradient could be computed but is not wanted by the backward in progress on this thread.

        Args:
            count: gradients that the region's backward graph gives; nothing is known if its inputs are others.
        """
        inputs, found = getattr(self._current, "unneeded", (0, ()))
        return found if inputs == count else ()

    # -- forward -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Remember a call's inputs while the region's forward runs."""
        before = getattr(self._current, "call", None)
        self._current.call = self._remember(inputs)
        try:
            yield
        finally:
            self._current.call = before

    def _remember(self, inputs: Sequence[Any]) -> RegionCall:
        kept = list(inputs)
        versions: list[int | None] = [None] * len(inputs)
        for index, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                continue
            if index < len(self.written) and self.written[index]:
                kept[index] = value if index in self.unread else value.clone()
            elif not value.is_inference():
                versions[index] = value._version
        return RegionCall(kept, versions, torch.get_rng_state() if self.random else None)

    def attach(self, cls: Any) -> None:
        """Make an AOTAutograd function differentiable twice, and let undefined gradients stay undefined.

        Args:
            cls: the class that `_compat.aot_compile` found.
        """
        self._slots = _compat.gradient_slots(cls.metadata)
        self.written = _compat.written_inputs(cls.metadata)
        forward, backward = cls.forward, cls.backward
        if self.graphs is not False:
            from staticrt.capture.compiled import new_pending
            from staticrt.capture.overrides import override

        def recorded_forward(ctx: Any, *args: Any) -> Any:
            outputs = forward(ctx, *args)
            ctx.set_materialize_grads(False)
            ctx._staticrt_call = getattr(self._current, "call", None)
            ctx._staticrt_pending = new_pending(self.graphs, args) if self.graphs is not False else None
            ctx._staticrt_tensors = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
            return outputs

        def differentiable_backward(ctx: Any, *grads: Any) -> Any:
            if torch.is_grad_enabled():
                boxed = len(grads) == 1 and isinstance(grads[0], list)
                return self._differentiate(ctx, list(grads[0]) if boxed else list(grads))
            pending = ctx._staticrt_pending
            plain = (
                contextlib.nullcontext() if pending is None or pending.captured else override(backward=False)
            )
            del pending
            if not _compat.keeps_graph():
                ctx._staticrt_call = ctx._staticrt_pending = None
            before = getattr(self._current, "unneeded", (0, ()))
            needs = ctx.needs_input_grad
            self._current.unneeded = len(needs), _unneeded(ctx._staticrt_tensors, needs)
            try:
                with plain:
                    return backward(ctx, *grads)
            finally:
                self._current.unneeded = before

        cls.forward = staticmethod(recorded_forward)
        cls.backward = staticmethod(differentiable_backward)

    # -- backward ----------------------------------------------------------------------------------------------

    def _differentiate(self, ctx: Any, gradients: list[Any]) -> tuple[Any, ...]:
        call: RegionCall | None = ctx._staticrt_call
        if call is None or len(call.inputs) != len(ctx.needs_input_grad):
            raise RuntimeError(
                f"staticrt cannot differentiate {self._name} twice: "
                + (
                    "it was compiled with double_backward=False, or its graph was freed by an earlier backward"
                    if call is None
                    else "it takes tensor subclasses, or inputs that alias each other"
                )
                + "; run this part eagerly, under torch.compiler.disable"
            )
        self._check_versions(call)
        needed = [i for i, needs in enumerate(ctx.needs_input_grad) if needs]
        with torch.enable_grad(), self._state_of(call):
            sources = [_stand_in(value) for value in call.inputs]
            inputs = [
                _unshared(value, version) for value, version in zip(sources, call.versions, strict=True)
            ]
            outputs = self._function(*inputs)
            outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        roots, seeds = [], []
        for (kind, index), gradient in zip(self._slots, gradients, strict=False):
            if gradient is None or kind == "none":
                continue
            root = inputs[index] if kind == "input" else outputs[index]
            if kind == "base" and root._base is not None:
                root = root._base
            if root.requires_grad:
                roots.append(root)
                seeds.append(gradient)
        found = iter(
            torch.autograd.grad(
                roots, [sources[i] for i in needed], seeds, create_graph=True, allow_unused=True
            )
            if roots
            else [None] * len(needed)
        )
        return tuple(next(found) if needs else None for needs in ctx.needs_input_grad)

    def _check_versions(self, call: RegionCall) -> None:
        for index, (value, version) in enumerate(zip(call.inputs, call.versions, strict=True)):
            if version is not None and value._version != version:
                raise RuntimeError(
                    f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"input {index} of {self._name}, {list(value.shape)}, is at version {value._version}; "
                    f"expected version {version}. Differentiating twice runs the region again on its inputs"
                )

    @contextlib.contextmanager
    def _state_of(self, call: RegionCall) -> Iterator[None]:
        """The random state and autocast of the call."""
        with contextlib.ExitStack() as stack:
            for device, enabled, dtype in self._autocast:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            if call.random_state is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.set_rng_state(call.random_state)
            yield


def _unneeded(tensors: Sequence[int], needs: Sequence[bool]) -> tuple[int, ...]:
    """Inputs that need a gradient for which the backward in progress has no use, as with `autograd.grad(out, x)`.

    Args:
        tensors: which inputs are tensors: the node has an edge for each of these.
        needs: whether each input requires gradients.
    """
    wanted = _C.wanted_gradients()
    if len(wanted) != len(tensors):
        return ()
    return tuple(i for i, wants in zip(tensors, wanted, strict=True) if needs[i] and not wants)


def _stand_in(value: Any) -> Any:
    """A tensor to differentiate by that is no other input's ancestor."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided:
        return value.clone()
    return value.view_as(value) if value.requires_grad else value.detach()


def _unshared(value: Any, version: int | None) -> Any:
    """What the region may write: a copy of an input that it does."""
    return value.clone() if isinstance(value, torch.Tensor) and version is None else value
