"""One recording of a training step, ready to run: when it applies, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.entry import Entry, share_memory, tensor_metadata
from staticrt.executable import Executable, StaticExecutable
from staticrt.fast_path import FastPath
from staticrt.frontend.graph import CapturedGraph
from staticrt.frontend.keys import CallKey
from staticrt.frontend.state import StateGuard
from staticrt.frontend.structure import Flattener
from staticrt.native import _C
from staticrt.report.explain import CaptureReport, capture_report
from staticrt.training.recording import GradEffect


class _Missed:
    def __repr__(self) -> str:
        return "MISSED"


# What a variant's fast path gives for a call that it does not serve.
MISSED: Any = _Missed()


class Variant:
    """One recording.

    Args:
        key: of the call that was recorded.
        leaves: its flat arguments.
        captured: the graph; its result is (the step's result, the new gradients).
        executable: runs it.
        state: Python state that was read.
        effects: what the step does to gradients.
        optimizers: those of ours that it steps.
    """

    def __init__(
        self,
        key: CallKey,
        leaves: Sequence[Any],
        captured: CapturedGraph,
        executable: Executable,
        state: StateGuard,
        effects: Sequence[GradEffect],
        optimizers: Sequence[Any],
    ) -> None:
        self.captured = captured
        self.key = key
        self._sizes = _sizes_of(leaves)
        self._entry = Entry(captured, executable, state, key.ints, tensor_metadata(captured.values))
        self._optimizers = list(optimizers)
        self._structures = [optimizer.structure() for optimizer in optimizers]
        own = [e for e in effects if e.leaf.argument < 0]
        self._no_grad_before = [e.leaf.tensor for e in own if e.had_grad is False]
        self._grad_before = [e.leaf.tensor for e in own if e.had_grad is True]
        self._effects = [e for e in effects if e.effect == "new"]
        self._cleared = [e.leaf.tensor for e in own if e.effect == "none"]
        self._hooked = [e.leaf.tensor for e in own]
        self._slots = self._find_slots()
        self._old_grads = [(p, captured.values[i]) for i, kind, p, _name in self._slots if kind == "grad"]
        self._guards: list[Any] = []
        self._arm()
        self.fast = FastPath(_missed)

    # -- whether it applies ------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether gradients and optimisers are as recorded. Brings the optimisers' numbers up to date."""
        for p in self._no_grad_before:
            if p.grad is not None:
                return False
        for p in self._grad_before:
            if p.grad is None:
                return False
        for p, grad in self._old_grads:
            if p.grad is not grad:
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

    def accepts(self, key: CallKey, leaves: Sequence[Any]) -> bool:
        """Whether a call is one that was recorded, maybe with other state tensors."""
        if key.key != self.key.key or dict(key.ints) != dict(self.key.ints):
            return False
        if not self.is_ready() and not (self._rebind() and self.is_ready()):
            return False
        if any(_C.grad_state(p) == 2 for p in self._hooked):
            return False
        return self._entry.accepts(leaves, key)

    def is_stale(self) -> bool:
        """Whether no call can be served again: an optimiser has other parameters."""
        return any(
            optimizer.structure() != structure
            for optimizer, structure in zip(self._optimizers, self._structures, strict=True)
        )

    def differs_in_sizes(self, key: CallKey, leaves: Sequence[Any]) -> bool:
        """Whether a call is like the recorded one but for sizes of its arguments."""
        return self.key.key == key.key and self._sizes != _sizes_of(leaves)

    def shares_memory(self, leaves: Sequence[Any]) -> bool:
        """Whether a tensor that is written overlaps another input."""
        return share_memory(self.captured, leaves)

    # -- tensors that may be replaced ----------------------------------------------------------------------------------

    def _find_slots(self) -> list[tuple[int, str, Any, Any]]:
        """Inputs that other tensors may take the place of: gradients, and what optimisers keep."""
        index = {id(value): i for i, value in enumerate(self.captured.values)}
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
        """Take the tensors that are there now; False if they differ in more than identity."""
        if self.is_stale():
            return False
        values = list(self.captured.values)
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
        self.captured.values = tuple(values)
        self._old_grads = [(p, values[i]) for i, kind, p, _name in self._slots if kind == "grad"]
        self.fast.forget()
        self._arm()
        return True

    def _arm(self) -> None:
        self._guards = []
        for optimizer in self._optimizers:
            dicts = [optimizer.state, *optimizer.state.values()]
            lists = [optimizer.param_groups, *(group["params"] for group in optimizer.param_groups)]
            guard = _C.StateGuard(dicts, lists, [], [], [], [])
            self._guards.append((optimizer.state, optimizer.param_groups, guard))

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, flat: Flattener, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run for flat arguments, and let the fast path serve calls like this one from now on."""
        captured, entry = self.captured, self._entry
        leaves = flat.leaves
        entry.calls += 1
        inputs = [*captured.values, *(leaves[index] for index in captured.user_leaves)]
        outputs = entry.executable.run(inputs)
        if isinstance(entry.executable, StaticExecutable):
            states = [_C.grad_state(value) if isinstance(value, torch.Tensor) else 0 for value in inputs]
            native = entry.executable
            self.fast.learn(captured, native.native, native.outputs, entry.state, args, kwargs, states)
        return self.finish(captured.out_spec.build(outputs, flat.containers), args, kwargs, leaves)

    def finish(
        self,
        done: tuple[Any, Sequence[torch.Tensor]],
        args: Any,
        kwargs: Any,
        leaves: Sequence[Any] | None = None,
    ) -> Any:
        """Put gradients where the step leaves them; the step's own result."""
        result, grads = done
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

    def report(self) -> CaptureReport:
        """For `explain()`."""
        return capture_report(self._entry)


def _missed(*args: Any, **kwargs: Any) -> Any:
    return MISSED


def _sizes_of(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))
