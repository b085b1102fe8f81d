"""torch's own optimisers in compiled steps.

While a step is recorded, a class of `optim.py` replaces each of them. It shares the optimiser's attributes, and its
updates read the learning rate from a tensor, so that a schedule never changes the graph. Updates are recorded the same
way with `foreach` or `fused`, which select an implementation and not another result.
"""

from __future__ import annotations

import types
from typing import Any, ClassVar

import torch

from staticrt.frontend.reasons import CannotTrace, is_torch_file
from staticrt.training import optim
from staticrt.training.held_optimizers import StandIn
from staticrt.training.optim import Recordable, unhooked


class OneByOne(Recordable):
    """Records torch's own loop over the parameters; all hyperparameters but the learning rate are constants."""

    kind: ClassVar[Any] = None
    numbers = ("lr",)

    def _flags_of(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(item for item in group.items() if item[0] not in ("params", "lr"))

    def _record_update(self, numbers_of_groups: list[torch.Tensor]) -> None:
        kept = [dict(group) for group in self.param_groups]
        try:
            for group, numbers in zip(self.param_groups, numbers_of_groups, strict=False):
                # The foreach loops divide lists of tensors by numbers, which must be known while the step is recorded.
                group.update(
                    lr=numbers[0].item(), **{key: False for key in ("foreach", "fused") if key in group}
                )
            unhooked(self.kind)(self)
        finally:
            for group, before in zip(self.param_groups, kept, strict=True):
                group.clear()
                group.update(before)


class RAdam(Recordable, torch.optim.RAdam):
    """`torch.optim.RAdam`, whose first updates differ from later ones, computed without a branch."""

    numbers = ("lr", "betas", "eps")

    def _flags_of(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*super()._flags_of(group), group["weight_decay"], group["decoupled_weight_decay"])

    def _record_group(self, group: dict[str, Any], params: list[torch.Tensor], numbers: torch.Tensor) -> None:
        lr, beta1, beta2, eps = (number.item() for number in numbers.unbind())
        rho_inf = 2 / (1 - beta2) - 1
        decay = group["weight_decay"]
        for p, grad, mean, square, counted in zip(
            params,
            optim.gradients(params),
            self._states(params, "exp_avg"),
            self._states(params, "exp_avg_sq"),
            self._states(params, "step"),
            strict=True,
        ):
            if group["maximize"]:
                grad = -grad
            counted += 1
            step = counted.double()
            if decay and group["decoupled_weight_decay"]:
                p.mul_(1 - lr * decay)
            elif decay:
                grad = grad.add(p, alpha=decay)
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            correction = 1 - beta2**step
            rho = rho_inf - 2 * step * beta2**step / correction
            rectified = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)).sqrt()
            factor = torch.where(rho > 5, correction.sqrt() / square.sqrt().add(eps) * rectified, 1.0)
            p.add_(mean / (1 - beta1**step) * lr * factor, alpha=-1)


class ASGD(Recordable, torch.optim.ASGD):
    """`torch.optim.ASGD`, which asks each state whether averaging has begun, computed without a branch."""

    numbers = ("lr", "lambd", "alpha", "t0")

    def _flags_of(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*super()._flags_of(group), group["weight_decay"])

    def _record_group(self, group: dict[str, Any], params: list[torch.Tensor], numbers: torch.Tensor) -> None:
        lr, lambd, alpha, t0 = (number.item() for number in numbers.unbind())
        is_foreach = group["foreach"] or (group["foreach"] is None and params[0].device.type != "cpu")
        for p, grad, mean, mu, eta, counted in zip(
            params,
            optim.gradients(params),
            *(self._states(params, name) for name in ("ax", "mu", "eta", "step")),
            strict=True,
        ):
            if group["maximize"]:
                grad = -grad
            counted += 1
            if group["weight_decay"]:
                grad = grad.add(p, alpha=group["weight_decay"])
            rate = eta.item()
            p.mul_(1 - lambd * rate)
            p.add_(grad, alpha=-rate)
            mean.copy_(torch.where(mu == 1, p, mean + (p - mean) * mu))
            step = counted if is_foreach else counted.double()  # as precise as torch's numbers
            eta.copy_(lr / (1 + lambd * lr * step) ** alpha)
            mu.copy_(1 / (counted.double() - t0).clamp(min=1))


class Adafactor(Recordable, torch.optim.Adafactor):
    """`torch.optim.Adafactor`, whose rates depend on norms of the parameters, computed without Python numbers."""

    numbers = ("lr", "beta2_decay", "d")

    def _flags_of(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*super()._flags_of(group), group["weight_decay"], group["eps"])

    def _record_group(self, group: dict[str, Any], params: list[torch.Tensor], numbers: torch.Tensor) -> None:
        lr, decay, threshold = numbers.unbind()
        least, least_size = group["eps"]
        if least is None:
            if len({p.dtype for p in group["params"]}) > 1:
                raise CannotTrace("Adafactor, with eps of the first of several dtypes")
            least = torch.finfo(params[0].dtype).eps
        for p, grad, counted in zip(
            params, optim.gradients(params), self._states(params, "step"), strict=True
        ):
            if group["maximize"]:
                grad = -grad
            counted += 1
            step = counted.double()
            weight = (step**decay).item()
            size = p.norm(2).double().to(step.device) / p.numel() ** 0.5
            rate = _max(size, least_size) * torch.minimum(lr, 1 / step**0.5)
            if group["weight_decay"]:
                p.mul_(1 - lr.item() * group["weight_decay"])
            if grad.dim() > 1:
                (rows,), (columns,) = self._states([p], "row_var"), self._states([p], "col_var")
                for variance, dim in ((rows, -1), (columns, -2)):
                    mean = torch.norm(grad, dim=dim, keepdim=True).square_().div_(grad.size(dim))
                    variance.lerp_(mean, weight)
                estimate = (rows @ columns).div_(rows.mean(dim=-2, keepdim=True).clamp_(min=least))
            else:
                (variance,) = self._states([p], "variance")
                variance.lerp_(grad * grad, weight)
                estimate = variance.clone()
            update = estimate.clamp_(min=least * least).rsqrt_().mul_(grad)
            norm = update.norm(2).double().to(step.device) / (update.numel() ** 0.5 * threshold)
            p.add_(update, alpha=-(rate / _max(norm, 1)).item())


class LBFGS(Recordable, torch.optim.LBFGS):
    """`torch.optim.LBFGS` beside a step that is its closure, which may call `zero_grad`; its own updates run eagerly."""

    reads_state = False

    def record_step(self, recording: Any, closure: Any = None) -> Any:
        raise CannotTrace(
            "torch.optim.LBFGS calls its closure as often as data decides "
            "(staticrt.compile_step of the closure compiles that)"
        )


def _max(number: torch.Tensor, least: float) -> torch.Tensor:
    """As Python's `max(least, number)`, also for NaN."""
    return torch.where(number > least, number, least)


_TWINS: dict[Any, type[Recordable]] = {
    torch.optim.SGD: optim.SGD,
    torch.optim.Adam: optim.Adam,
    torch.optim.AdamW: optim.AdamW,
    torch.optim.RAdam: RAdam,
    torch.optim.ASGD: ASGD,
    torch.optim.Adafactor: Adafactor,
    torch.optim.LBFGS: LBFGS,
    **{
        getattr(torch.optim, name): type(
            name, (OneByOne, getattr(torch.optim, name)), {"kind": getattr(torch.optim, name)}
        )
        for name in ("Adadelta", "Adagrad", "Adamax", "Muon", "NAdam", "RMSprop", "Rprop")
    },
}

# Those of torch, of its schedules and gradient scalers, and ours.
_ATTRIBUTES = frozenset(
    (
        *("defaults", "state", "param_groups", "step", "zero_grad", "grad_scale", "found_inf"),
        *(
            f"_optimizer_{what}_{when}_hooks"
            for what in ("step", "state_dict", "load_state_dict")
            for when in ("pre", "post")
        ),
        *("_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name", "_step_supports_amp_scaling"),
        *("_params", "_numel_cache"),  # of LBFGS
        *("_need_device_dtype_check_for_fused", "_opt_called", "_staticrt_numbers", "_staticrt_known"),
    )
)


def twin_of(optimizer: Any) -> Recordable | None:
    """The stand-in for one of torch's optimisers while a step is recorded; None: its own code is recorded.

    There is none for an optimiser with hooks, with a `step` that is not torch's, with attributes beyond torch's, which
    code may read, or with hyperparameters in tensors, which the step may compute.
    """
    kind: Any = type(optimizer)
    owner = _TWINS.get(kind)
    if owner is None or not (_is_of_torch(kind.step) and _is_of_torch(unhooked(kind))):
        return None
    attributes = vars(optimizer)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    if any(name not in _ATTRIBUTES for name in attributes):
        return None
    if not all(isinstance(each, dict) for each in optimizer.state.values()):
        return None
    step = attributes.get("step")
    if "zero_grad" in attributes or (step is not None and not hasattr(step, "_wrapped_by_lr_sched")):
        return None
    for group in optimizer.param_groups:
        if any(isinstance(value, torch.Tensor) for value in (*group.values(), *group.get("betas", ()))):
            return None
    twin: Recordable = object.__new__(owner)
    twin.__dict__ = attributes
    return None if twin.can_record() else twin


def _is_of_torch(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and is_torch_file(function.__code__.co_filename)


def has_twin(value: Any) -> bool:
    """Whether `twin_of` returns a stand-in for an object, or one is in place now."""
    if not isinstance(value, torch.optim.Optimizer):
        return False
    return isinstance(vars(value).get("step"), StandIn) or twin_of(value) is not None
