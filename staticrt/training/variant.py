"""One recording of a training step: when it applies, and how it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt import torch_private
from staticrt.frontend.arguments.structure import Flattener
from staticrt.frontend.graph import TracedGraph
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.native import _C
from staticrt.runtime.branches import run_decided
from staticrt.runtime.cached_trace import CachedTrace, beyond_trace, share_memory, tensor_metadata
from staticrt.runtime.call import Call
from staticrt.runtime.executable import Executable, StaticExecutable
from staticrt.runtime.explain.explanation import TraceReport, trace_report
from staticrt.runtime.fast_call import FastPath
from staticrt.training.held_optimizers import Read
from staticrt.training.recording import GradEffect


class _Missed:
    def __repr__(self) -> str:
        return "MISSED"


# A variant's fast path returns this for a call that it does not serve.
MISSED: Any = _Missed()


class Variant:
    """One recording.

    Args:
        call: the recorded call; its arguments are not kept.
        traced: the graph; its result is (the step's result, the new gradients, the weights assigned).
        executable: runs it.
        state: Python state that the step read.
        effects: the step's effects on gradients.
        weights: where the weights belong: the attributes of a module, a name.
        optimizers: the recordable optimisers that it reaches.
        reads: hyperparameters that are constants of the graph.
    """

    def __init__(
        self,
        call: Call,
        traced: TracedGraph,
        executable: Executable,
        state: StateGuard,
        effects: Sequence[GradEffect],
        weights: Sequence[tuple[dict[str, Any], str]],
        optimizers: Sequence[Any],
        reads: Sequence[Read],
    ) -> None:
        self._reads = reads
        self._weights = list(weights)
        self.traced = traced
        self.key = call.key
        self._sizes = _sizes_of(call.leaves)
        self._entry = CachedTrace(traced, executable, state, call.key.ints)
        self._optimizers = list(optimizers)
        for optimizer in optimizers:
            optimizer.synchronise()  # adds attributes, which the structure counts
        self._structures = [optimizer.structure() for optimizer in optimizers]
        own = [e for e in effects if e.leaf.argument < 0]
        self._no_grad_before = [e.leaf.tensor for e in own if e.had_grad is False]
        self._grad_before = [e.leaf.tensor for e in own if e.had_grad is True]
        self._effects = [e for e in effects if e.effect == "new"]
        self._cleared = [e.leaf.tensor for e in own if e.effect == "none"]
        self._hooked = [e.leaf.tensor for e in own]
        self._slots = self._find_slots()
        self._old_grads = [(p, traced.values[i]) for i, kind, p, _name in self._slots if kind == "grad"]
        self._guards: list[Any] = []
        self._arm()
        self.fast = FastPath(_missed)

    # -- whether it applies ------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether gradients and optimisers are as recorded; also updates the optimisers' `number_tensors`."""
        if not torch_private.grad_layouts_are_enforced():
            return False
        for p in self._no_grad_before:
            if p.grad is not None:
                return False
        for p in self._grad_before:
            if p.grad is None:
                return False
        for p, grad in self._old_grads:
            if p.grad is not grad:
                return False
        for read in self._reads:
            if not read.holds():
                return False
        for optimizer, structure, (state, groups, guard) in zip(
            self._optimizers, self._structures, self._guards, strict=True
        ):
            if optimizer.state is not state or optimizer.param_groups is not groups or not guard.holds():
                return False
            if optimizer.structure() != structure:
                return False
            optimizer.synchronise()
        return True

    def accepts(self, call: Call) -> bool:
        """Whether the recording serves a call, perhaps with other state tensors."""
        if call.key.key != self.key.key or dict(call.key.ints) != dict(self.key.ints):
            return False
        if not self.is_ready() and not (self._rebind() and self.is_ready()):
            return False
        if any(_C.grad_state(p) == 2 for p in self._hooked):
            return False
        return self._entry.accepts(call.leaves, call.key)

    def is_stale(self) -> bool:
        """Whether an optimiser has other parameters, so that the recording serves no further call."""
        return any(
            optimizer.structure() != structure
            for optimizer, structure in zip(self._optimizers, self._structures, strict=True)
        )

    def differs_in_sizes(self, call: Call) -> bool:
        """Whether a call differs from the recorded one in the sizes of its arguments only."""
        return self.key.key == call.key.key and self._sizes != _sizes_of(call.leaves)

    def shares_memory(self, leaves: Sequence[Any]) -> bool:
        """Whether a tensor that the step writes overlaps another input."""
        return share_memory(self.traced, leaves)

    def beyond(self, error: Exception) -> str:
        """Why the call runs eagerly after a run raised an error, see `beyond_trace`."""
        return beyond_trace(error, self._entry)

    # -- tensors that may be replaced ----------------------------------------------------------------------------------

    def _find_slots(self) -> list[tuple[int, str, Any, Any]]:
        """Inputs that other tensors may replace: gradients and optimiser state."""
        index = {id(value): i for i, value in enumerate(self.traced.values)}
        slots: list[tuple[int, str, Any, Any]] = []
        for p in self._grad_before:
            if id(p.grad) in index:
                slots.append((index[id(p.grad)], "grad", p, None))
        for optimizer in self._optimizers:
            for p, state in optimizer.state.items():
                for name, value in state.items():
                    if id(value) in index:
                        slots.append((index[id(value)], "state", (optimizer, p), name))
        return slots

    def _rebind(self) -> bool:
        """Bind the current tensors; False if they differ in more than identity."""
        if self.is_stale():
            return False
        values = list(self.traced.values)
        for i, kind, owner, name in self._slots:
            if kind == "grad":
                value = owner.grad
            else:
                optimizer, p = owner
                value = optimizer.state.get(p, {}).get(name)
            if not isinstance(value, torch.Tensor):
                return False
            values[i] = value
        if tensor_metadata(values) != self._entry.metadata:
            return False
        self._entry.replace_values(tuple(values))
        self._old_grads = [(p, values[i]) for i, kind, p, _name in self._slots if kind == "grad"]
        self.fast.forget()
        self._arm()
        return True

    def _arm(self) -> None:
        self._guards = []
        for optimizer in self._optimizers:
            dicts = [optimizer.state, *optimizer.state.values()] if optimizer.reads_state else []
            lists = [optimizer.param_groups, *(group["params"] for group in optimizer.param_groups)]
            guard = _C.StateGuard(
                dicts=[(each, dict(each), False) for each in dicts],
                lists=[(each, list(each)) for each in lists],
            )
            self._guards.append((optimizer.state, optimizer.param_groups, guard))

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, call: Call) -> Any:
        """Run a call, and let the fast path serve later calls of the same structure.

        Raises:
            OtherDecision: data took another branch than when the step was recorded; nothing was changed.
        """
        traced, entry = self.traced, self._entry
        leaves = call.leaves
        entry.calls += 1
        inputs = entry.inputs(leaves)
        outputs = run_decided(entry, inputs) if traced.decided else entry.executable.run(inputs)
        if isinstance(entry.executable, StaticExecutable):
            states = [_C.grad_state(value) if isinstance(value, torch.Tensor) else 0 for value in inputs]
            native = entry.executable
            self.fast.learn(
                entry.call_spec, native.native, native.outputs, entry.state, call.args, call.kwargs, states
            )
        return self.finish(traced.out_spec.build(outputs, call.containers), call.args, call.kwargs, leaves)

    def finish(
        self,
        done: tuple[Any, Sequence[torch.Tensor], Sequence[torch.Tensor]],
        args: Any,
        kwargs: Any,
        leaves: Sequence[Any] | None = None,
    ) -> Any:
        """Assign the gradients and weights, and return the step's result."""
        result, grads, weights = done
        for (attributes, name), weight in zip(self._weights, weights, strict=True):
            attributes[name] = weight
        for p in self._cleared:
            p.grad = None
        for effect, grad in zip(self._effects, grads, strict=True):
            leaf = effect.leaf
            if leaf.argument < 0:
                leaf.tensor.grad = grad
            else:
                if leaves is None:
                    flattener = Flattener()
                    flattener.flatten((args, kwargs))
                    leaves = flattener.leaves
                leaves[leaf.argument].grad = grad
        return result

    def report(self) -> TraceReport:
        """For `explain()`."""
        return trace_report(self._entry)


def _missed(*args: Any, **kwargs: Any) -> Any:
    return MISSED


def _sizes_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))
