"""SGD, Adam and AdamW for compiled training steps.

They are subclasses of `torch.optim`'s: options, state, state dict, hooks, schedulers and eager steps are inherited.
While a step is recorded (`staticrt.compile_step`), `step()` updates each parameter group by one operator, which
writes in place and reads every hyperparameter from a tensor, so that a schedule never changes the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from staticrt.frontend.reasons import CannotTrace
from staticrt.native import _C  # loads the operators
from staticrt.training.recording import CAPTURABLE_ON_THE_CPU, Recording, current, is_capturable_on_the_cpu

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

__all__ = ["SGD", "Adam", "AdamW"]


class NotReady(CannotTrace):
    """The optimiser has no state for a parameter yet; torch creates it in an eager step."""


class Recordable:
    """Base class of the optimisers below: what they add to torch's.

    Class attributes:
        numbers: names of hyperparameters that may change without a new recording, in the operator's order;
            "betas" counts as two.
        flags: names of hyperparameters that are constants of the graph.
        skips: the operator reads one number more, and does nothing where that is not 0.
        reads_state: an update is recorded, so that a recording depends on the optimiser's state.
    """

    numbers: ClassVar[tuple[str, ...]] = ()
    flags: ClassVar[tuple[str, ...]] = ("maximize", "foreach", "fused", "capturable", "differentiable")
    skips: ClassVar[bool] = False
    reads_state: ClassVar[bool] = True

    param_groups: list[dict[str, Any]]
    state: Any
    _optimizer_step_pre_hooks: dict[int, Any]
    _optimizer_step_post_hooks: dict[int, Any]

    # -- hyperparameters -----------------------------------------------------------------------------------------

    def number_tensors(self) -> list[torch.Tensor]:
        """One float64 tensor of current hyperparameters per group; always the same objects."""
        tensors: list[torch.Tensor] = self.__dict__.setdefault("_staticrt_numbers", [])
        while len(tensors) < len(self.param_groups):
            tensors.append(torch.zeros(len(self._numbers_of(self.param_groups[0])), dtype=torch.float64))
        return tensors

    def synchronise(self) -> None:
        """Copy the hyperparameters of `param_groups` into `number_tensors`."""
        known: list[Any] = self.__dict__.setdefault("_staticrt_known", [])
        groups = self.param_groups
        if len(known) != len(groups):
            known[:] = [None] * len(groups)
        for index, group in enumerate(groups):
            numbers = self._numbers_of(group)
            if numbers != known[index]:
                with torch.no_grad():
                    self.number_tensors()[index].copy_(torch.tensor(numbers, dtype=torch.float64))
                known[index] = numbers

    def _numbers_of(self, group: dict[str, Any]) -> tuple[float, ...]:
        found: list[float] = []
        for name in self.numbers:
            value = group[name]
            if name == "betas":
                found += [float(value[0]), float(value[1])]
            else:
                found.append(value if type(value) is float else float(value))
        return tuple(found)

    def structure(self) -> list[Any]:
        """The flags of each group, the hooks, and how many attributes there are; a recording depends on them, besides
        numbers and tensors."""
        hooks = [*self._optimizer_step_pre_hooks, *self._optimizer_step_post_hooks]
        return [
            hooks,
            len(vars(self)),
            *([self._flags_of(group), len(group["params"])] for group in self.param_groups),
        ]

    def _flags_of(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(group.get(name) for name in self.flags)

    # -- recorded calls ------------------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters, as in `torch.optim`."""
        recording = current()
        if recording is None or not set_to_none:
            super().zero_grad(set_to_none)  # type: ignore[misc]
            return
        recording.reset([p for group in self.param_groups for p in group["params"]])

    def record_step(self, recording: Recording, closure: Callable[[], Any] | None = None) -> Any:
        """One update, recorded."""
        recording.use_optimizer(self)
        skip: Any = recording.skip
        scale: Any = None
        if "found_inf" in vars(
            self
        ):  # a scaler leaves it to an optimiser with fused=True to divide gradients
            skip, scale = vars(self)["found_inf"], vars(self).get("grad_scale")
        loss = None
        if closure is not None:
            if skip is not None:
                raise CannotTrace("a closure that a gradient scaler leaves out or calls")
            with torch.enable_grad():
                loss = closure()
        with recording.updating(), torch.no_grad():
            if not self.is_ready():
                raise NotReady("an optimiser's first step: torch creates its state in an eager step")
            for p in self._updated() if scale is not None else ():
                p.grad.copy_(torch.where(skip.to(p.device) != 0, p.grad, p.grad / scale.to(p.device)))
            numbers = self.number_tensors()
            if skip is None:
                self._record_update(numbers)
            elif self.skips:
                skip = skip.reshape(1).to(torch.float64).cpu()
                self._record_update([torch.cat((each, skip)) for each in numbers])
            else:
                before = [(tensor, tensor.clone()) for tensor in self._tensors()]
                self._record_update(numbers)
                for tensor, kept in before:
                    tensor.copy_(torch.where(skip.to(tensor.device) != 0, kept, tensor))
        return loss

    def _updated(self) -> list[Any]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    def _tensors(self) -> list[torch.Tensor]:
        """What an update may write."""
        params = self._updated()
        states = [value for p in params for value in self.state.get(p, {}).values()]
        return [*params, *(value for value in states if isinstance(value, torch.Tensor))]

    def _record_update(self, numbers_of_groups: list[torch.Tensor]) -> None:
        for group, numbers in zip(self.param_groups, numbers_of_groups, strict=False):
            by_kind: dict[Any, list[torch.Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_kind.setdefault((p.dtype, p.device), []).append(p)
            for params in by_kind.values():
                self._record_group(group, params, numbers)

    def _record_group(self, group: dict[str, Any], params: list[torch.Tensor], numbers: torch.Tensor) -> None:
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether every parameter with a gradient has the state that its update needs."""
        return all(
            p.grad is None or self.state.get(p) for group in self.param_groups for p in group["params"]
        )

    def can_record(self) -> str | None:
        """Why recorded steps would differ from torch's, or None."""
        if is_capturable_on_the_cpu(self):
            return CAPTURABLE_ON_THE_CPU
        for group in self.param_groups:
            if group.get("differentiable"):
                return "an optimiser with differentiable=True"
            for p in group["params"]:
                if p.dtype not in _DTYPES:
                    return f"an optimiser of {p.dtype} parameters"
                if p.layout != torch.strided or not _is_dense(p):
                    return "an optimiser of parameters that are not dense"
        return None

    def _states(self, params: Sequence[torch.Tensor], name: str) -> list[torch.Tensor]:
        found = []
        for p in params:
            value = self.state.get(p, {}).get(name)
            if value is None:
                raise NotReady("a parameter's first update: torch creates its state in an eager step")
            # `module.to(dtype)` does not convert the state; step counts are float32 for parameters of any dtype.
            if value.dtype != p.dtype and value.shape == p.shape and name != "step":
                raise CannotTrace(f"{value.dtype} state of a {p.dtype} parameter")
            found.append(value)
        return found


def _is_dense(p: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(p))


def unhooked(kind: Any) -> Any:
    """A torch optimiser's `step` without its step hooks, which already run around the subclass's step."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def gradients(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    grads = []
    for p in params:
        assert p.grad is not None
        if p.grad.layout != torch.strided:
            raise CannotTrace("a sparse gradient")
        if p.grad.dtype != p.dtype:
            raise CannotTrace(f"a {p.grad.dtype} gradient of a {p.dtype} parameter")
        grads.append(p.grad)
    return grads


class SGD(Recordable, torch.optim.SGD):
    """`torch.optim.SGD`, with the same arguments, that `staticrt.compile_step` can record."""

    numbers = ("lr", "weight_decay", "momentum", "dampening")
    flags = (*Recordable.flags, "nesterov")
    skips = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; see `torch.optim.SGD.step`."""
        recording = current()
        if recording is None:
            return unhooked(torch.optim.SGD)(self, closure)
        return self.record_step(recording, closure)

    def _flags_of(self, group: dict[str, Any]) -> tuple[Any, ...]:
        decays = group["nesterov"] and group["weight_decay"] != 0
        return (*super()._flags_of(group), group["momentum"] != 0, decays)

    def is_ready(self) -> bool:
        return all(
            p.grad is None or self.state.get(p, {}).get("momentum_buffer") is not None
            for group in self.param_groups
            if group["momentum"] != 0
            for p in group["params"]
        )

    def _record_group(self, group: dict[str, Any], params: list[torch.Tensor], numbers: torch.Tensor) -> None:
        buffers = self._states(params, "momentum_buffer") if group["momentum"] != 0 else []
        grads = gradients(params)
        torch.ops.staticrt.sgd_(params, grads, buffers, numbers, group["nesterov"], group["maximize"])
        # torch's foreach=True computes this update in place in the gradients, unless they have been copied before.
        is_foreach = group["foreach"] or (group["foreach"] is None and params[0].device.type != "cpu")
        if group["nesterov"] and is_foreach and not (group["maximize"] or group["weight_decay"]):
            momentum = numbers[2]
            if len(numbers) > len(self.numbers):  # the last one says whether a scaler leaves the update out
                momentum = torch.where(numbers[-1] != 0, 0.0, momentum)
            for grad, buffer in zip(grads, buffers, strict=True):
                grad.add_(buffer, alpha=momentum.item())


class Adam(Recordable, torch.optim.Adam):
    """`torch.optim.Adam`, with the same arguments, that `staticrt.compile_step` can record."""

    numbers = ("lr", "betas", "weight_decay", "eps")
    flags = (*Recordable.flags, "amsgrad", "decoupled_weight_decay")
    skips = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update; see `torch.optim.Adam.step`."""
        recording = current()
        if recording is None:
            return unhooked(torch.optim.Adam)(self, closure)
        return self.record_step(recording, closure)

    def _record_group(self, group: dict[str, Any], params: list[torch.Tensor], numbers: torch.Tensor) -> None:
        torch.ops.staticrt.adam_(
            params,
            gradients(params),
            self._states(params, "exp_avg"),
            self._states(params, "exp_avg_sq"),
            self._states(params, "max_exp_avg_sq") if group["amsgrad"] else [],
            self._states(params, "step"),
            numbers,
            group["amsgrad"],
            group["maximize"],
            bool(group.get("decoupled_weight_decay", isinstance(self, AdamW))),
        )


class AdamW(Adam, torch.optim.AdamW):
    """`torch.optim.AdamW`, with the same arguments, that `staticrt.compile_step` can record."""


assert _C is not None
