"""Second derivatives of a compiled region: its graph runs again, eagerly, on the inputs of the call.

AOTAutograd's backward is a function of saved activations without a history, so it refuses `create_graph=True`. Each
call therefore keeps references to its inputs; a backward with `create_graph=True` runs the region again with autograd
on and differentiates that run. Other calls only pay for the references.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from staticrt import torch_private
from staticrt.frontend.guards.process_state import AutocastState
from staticrt.native import _C
from staticrt.training.formulas import Functions
from staticrt.training.grad_modes import outside_vmap
from staticrt.training.region_metadata import gradient_slots, have_gradients, written_inputs
from staticrt.training.saved import SharedReads


@dataclasses.dataclass
class RegionCall:
    """The state that runs one call of a region again.

    Args:
        inputs: as given; copies of those that the region writes, unless no result depends on their old values.
        versions: version counters at the start of the call; None for tensors that the region writes.
        random_state: state of the CPU generator when the call began, if the region draws from it.
    """

    inputs: list[Any]
    versions: list[int | None]
    random_state: torch.Tensor | None


class Replay:
    """Differentiates a region twice.

    Args:
        function: the region on flat inputs, as Dynamo traced it.
        name: for messages.
        functions: the custom autograd Functions in it, which decide what cannot run as it was recorded.
        of_model: inputs that the function reads by itself, and not as the arguments that it is given.

    Attributes:
        written: which inputs the region writes; known once it is compiled.
        unread: inputs that the region writes although no result depends on their values.
        random: whether the region draws random numbers; known once it is compiled.
        graphs: the option; captured graphs must know which backwards are pending.
        refuses: why running the function again does not give second derivatives; "" if it does.
        is_cast: whether the thread's autocast state changes what the backward computes.
        shared: which backwards read saved values that callers can write.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        unread: frozenset[int] = frozenset(),
        functions: Functions | None = None,
        of_model: frozenset[int] = frozenset(),
    ) -> None:
        self._function = function
        self.functions = functions
        self._of_model = of_model
        self.unread = unread
        self._name = name
        self._autocast = AutocastState()
        self._current = threading.local()
        self._slots: list[tuple[str, int]] = []
        self._has_gradient: list[bool] = []
        self.written: list[bool] = []
        self.random = False
        self.graphs: Any = False  # the option
        self.is_cast: Callable[[], bool] = bool
        self.shared: SharedReads | None = None
        self.refuses = ""  # why no run of the function would tell second derivatives

    def unneeded(self, count: int) -> tuple[int, ...]:
        """Inputs that require gradients which the backward on this thread does not ask for.

        Args:
            count: gradients that the region's backward graph returns; the result is empty if it differs from the
                number of inputs.
        """
        inputs, found = getattr(self._current, "unneeded", (0, ()))
        return found if inputs == count else ()

    # -- forward -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Keep a call's inputs while the region's forward runs."""
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
        """Make an AOTAutograd function differentiable twice, and keep undefined gradients undefined.

        Args:
            cls: the class that `torch_private.aot_compile` found.
        """
        self._slots = gradient_slots(cls.metadata)
        self.written = written_inputs(cls.metadata)
        self._has_gradient = have_gradients(cls.metadata, self._slots)
        forward, backward = cls.forward, cls.backward
        if self.graphs is not False:
            from staticrt.graphs.compiled import new_pending
            from staticrt.graphs.overrides import override

        def recorded_forward(ctx: Any, *args: Any) -> Any:
            outputs = forward(ctx, *args)
            ctx.set_materialize_grads(False)
            ctx._staticrt_call = getattr(self._current, "call", None)
            ctx._staticrt_pending = new_pending(self.graphs, args) if self.graphs is not False else None
            ctx._staticrt_tensors = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
            return outputs

        @torch_private.hidden_from_dynamo
        def differentiable_backward(ctx: Any, *grads: Any) -> Any:
            boxed = len(grads) == 1 and isinstance(grads[0], list)
            # Programs read memory, which gradients inside a vmap do not expose.
            gradients = grads[0] if boxed else list(grads)
            if (
                torch.is_grad_enabled()
                or any(map(torch_private.is_wrapper, gradients))
                or (self._runs_again(ctx) and (self.is_cast() or self._was_written(ctx, gradients)))
            ):
                return self._differentiate(ctx, list(gradients))
            gradients[:] = map(_plain, gradients)  # in place: upstream lets what is boxed go as it is read
            pending = ctx._staticrt_pending
            plain = (
                contextlib.nullcontext() if pending is None or pending.captured else override(backward=False)
            )
            del pending
            if not torch_private.keeps_graph():
                ctx._staticrt_call = ctx._staticrt_pending = None
            before = getattr(self._current, "unneeded", (0, ()))
            needs = ctx.needs_input_grad
            self._current.unneeded = len(needs), _unneeded(ctx._staticrt_tensors, needs)
            try:
                with plain:
                    return backward(ctx, *([gradients] if boxed else gradients))
            finally:
                self._current.unneeded = before

        cls.forward = staticmethod(recorded_forward)
        cls.backward = staticmethod(differentiable_backward)

    def attach_to_results(self, written: list[bool], num_results: int, random: bool) -> None:
        """For a region without AOTAutograd: each result has an incoming gradient of its own, if any."""
        self._slots = [("output", index) for index in range(num_results)]
        self.written = written
        self.random = random

    # -- backward ----------------------------------------------------------------------------------------------

    def _differentiate(self, ctx: Any, gradients: list[Any], ends: Sequence[int] = ()) -> tuple[Any, ...]:
        """Gradients of a call's inputs, and of its results `ends`, through which none of the others is computed."""
        if self.refuses:
            raise RuntimeError(
                f"staticrt cannot differentiate {self._name} twice: {self.refuses}; run this part eagerly, under "
                "torch.compiler.disable"
            )
        call: RegionCall | None = ctx._staticrt_call
        if call is None or not self._runs_again(ctx):
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
        create_graph = torch.is_grad_enabled()
        needed = [i for i, needs in enumerate(ctx.needs_input_grad) if needs]
        with torch.enable_grad(), outside_vmap(), self._state_of(call):
            sources = [
                value if i in self._of_model else _stand_in(value) for i, value in enumerate(call.inputs)
            ]
            inputs = [
                value if i in self._of_model else _unshared(value, version)
                for i, (value, version) in enumerate(zip(sources, call.versions, strict=True))
            ]
            gate = _Gate()
            outputs = self._function(*inputs, **({"ends": ends, "end": gate} if ends else {}))
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
        wanted = [sources[i] for i in needed] + [outputs[i] for i in ends]
        found = iter(
            torch.autograd.grad(roots, wanted, seeds, create_graph=create_graph, allow_unused=True)
            if roots
            else [None] * len(wanted)
        )
        gate.is_open = True
        if self.functions is not None and create_graph:
            self.functions.watch(roots, sources)
        return (*(next(found) if needs else None for needs in ctx.needs_input_grad), *found)

    @staticmethod
    def _runs_again(ctx: Any) -> bool:
        """Whether the state that a call keeps is enough to run the region again."""
        call = ctx._staticrt_call
        return call is not None and len(call.inputs) == len(ctx.needs_input_grad)

    def _was_written(self, ctx: Any, gradients: Sequence[Any]) -> bool:
        """Whether something saved was written that this backward does not read, since some gradients are undefined.

        Eager's nodes that saved it do not run; the one node of a region would raise.
        """
        if self.shared is None or all(value is not None for value in gradients):
            return False
        slots = [i for i, has_gradient in enumerate(self._has_gradient) if has_gradient]
        if not self.shared.without([gradients[i] is None for i in slots]):
            return False
        try:
            return not isinstance(ctx.saved_tensors, tuple)
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error)

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
        """Context manager: the random state and autocast state of the call."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._autocast.entered())
            if call.random_state is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.set_rng_state(call.random_state)
            yield


class _Gate:
    """Lets no gradient through until it is open; then derivatives of gradients pass to what values are computed from."""

    def __init__(self) -> None:
        self.is_open = False

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """The same value, behind the gate."""
        behind: torch.Tensor = _Gated.apply(value, self)  # type: ignore[no-untyped-call]
        return behind


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, gate: _Gate) -> torch.Tensor:
        ctx.gate = gate
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        return (gradients[0] if ctx.gate.is_open else None), None


def _unneeded(tensors: Sequence[int], needs: Sequence[bool]) -> tuple[int, ...]:
    """Inputs that require gradients which the current backward does not use, as with `autograd.grad(out, x)`.

    Args:
        tensors: positions of the inputs that are tensors; the node has one edge for each.
        needs: whether each input requires gradients.
    """
    wanted = _C.wanted_gradients()
    if len(wanted) != len(tensors):
        return ()
    return tuple(i for i, wants in zip(tensors, wanted, strict=True) if needs[i] and not wants)


def _plain(gradient: Any) -> Any:
    """A gradient without lazy conjugation or negation, for which the graphs were recorded."""
    if isinstance(gradient, torch.Tensor) and (gradient.is_conj() or gradient.is_neg()):
        return gradient.resolve_conj().resolve_neg()
    return gradient


def _stand_in(value: Any) -> Any:
    """A leaf to differentiate with respect to, so that no input depends on another."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout != torch.strided:
        return value.clone()
    return value.view_as(value) if value.requires_grad else value.detach()


def _unshared(value: Any, version: int | None) -> Any:
    """A copy of an input that the region writes; other inputs as they are."""
    return value.clone() if isinstance(value, torch.Tensor) and version is None else value
