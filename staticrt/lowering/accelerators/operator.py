"""The operator `staticrt_accelerators::run`: it looks up an accelerator subgraph and runs its compiled form."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import locks, tuning
from staticrt.frontend.tracing import patches as tracing
from staticrt.lowering.accelerators.protocol import Accelerator

_library: Any = torch.library.Library("staticrt_accelerators", "DEF")  # type: ignore[no-untyped-call]
_library.define("run(Tensor[] inputs, int subgraph) -> Tensor[]")
_subgraphs: weakref.WeakValueDictionary[int, Subgraph] = weakref.WeakValueDictionary()
_handles = itertools.count()


class _WithWeights(torch.nn.Module):
    """A subgraph's body with some of its inputs as buffers, so that an accelerator may pack them."""

    def __init__(self, body: fx.GraphModule, weights: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.body = body
        self.positions = tuple(weights)
        for position, tensor in weights.items():
            self.register_buffer(f"weight_{position}", tensor.detach())

    def forward(self, *inputs: torch.Tensor) -> Any:
        rest = iter(inputs)
        total = len(inputs) + len(self.positions)
        return self.body(
            *(getattr(self, f"weight_{i}") if i in self.positions else next(rest) for i in range(total))
        )


@dataclasses.dataclass(frozen=True)
class _Form:
    """A subgraph compiled for one combination of shapes.

    Args:
        run: takes the inputs that are not weights; None if the accelerator failed, for `reason`.
        weights: position -> (address, version) of the weights compiled in.
    """

    run: Callable[..., Any] | None
    weights: dict[int, tuple[int, int]]
    reason: str = ""


class Subgraph:
    """A part of a graph that an accelerator compiles, once for each combination of input shapes.

    The model's own tensors are compiled in as constants; when one changes, the subgraph is compiled anew, and after
    a few times they become inputs.

    Args:
        body: takes tensors, returns a tuple of tensors.
        model_inputs: positions of inputs that are the model's own tensors.
        nodes, ops, where: names, operators and model lines inside, for reports.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        body: fx.GraphModule,
        *,
        model_inputs: tuple[int, ...] = (),
        nodes: tuple[str, ...] = (),
        ops: tuple[str, ...] = (),
        where: tuple[str, ...] = (),
    ) -> None:
        self.accelerator = accelerator
        self.body = body
        self.model_inputs = model_inputs
        self.nodes = nodes
        self.ops = ops
        self.where = where
        self.calls = 0
        self.fallbacks: dict[str, int] = {}
        self._forms: dict[Any, _Form] = {}
        self._new_weights = 0
        self._lock = locks.reentrant()

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        key = tuple((x.dtype, x.shape, x.stride(), x.device) for x in inputs)
        with self._lock:
            self.calls += 1
            form = self._forms.get(key)
            if form is not None and form.weights and form.weights != _versions(inputs, form.weights):
                self._new_weights += 1
                form = None
            if form is None:
                form = self._compile(key, inputs)
            if form.run is None:
                self.fallbacks[form.reason] = self.fallbacks.get(form.reason, 0) + 1
        if form.run is None:
            results = self.body(*inputs)
        else:
            results = form.run(*(x for i, x in enumerate(inputs) if i not in form.weights))
        return _apart(list(results) if isinstance(results, (list, tuple)) else [results], inputs)

    def _compile(self, key: Any, inputs: Sequence[torch.Tensor]) -> _Form:
        if key not in self._forms and len(self._forms) >= tuning.ACCELERATOR_MAX_SHAPES:
            return _Form(None, {}, f"more than {tuning.ACCELERATOR_MAX_SHAPES} combinations of shapes")
        weights: dict[int, torch.Tensor] = {}
        if self._new_weights < tuning.ACCELERATOR_MAX_NEW_WEIGHTS:
            weights = {i: inputs[i] for i in self.model_inputs if not inputs[i].is_inference()}
        given = [x.detach() for i, x in enumerate(inputs) if i not in weights]
        try:
            if not given:  # torch.export and accelerators need at least one input
                weights, given = {}, [x.detach() for x in inputs]
            module = _WithWeights(self.body, weights) if weights else self.body
            with tracing.alone():  # torch.export keeps state of the whole process
                program = torch.export.export(module, tuple(given), strict=False)
            form = _Form(self.accelerator.compile(program, given), _versions(inputs, weights))
        except Exception as error:
            lines = str(error).strip().splitlines()
            form = _Form(None, {}, f"{type(error).__name__}: {lines[0] if lines else ''}".strip())
        self._forms[key] = form
        return form

    def line(self, accelerator: str) -> str:
        """A line for `explain()`."""
        shown = ", ".join(self.ops[:4]) + (", …" if len(self.ops) > 4 else "")
        compiled = sum(form.run is not None for form in self._forms.values())
        text = f"{accelerator}: {len(self.nodes)} nodes ({shown}), {self.calls} calls, compiled for {compiled} shapes"
        if self.where:
            text += f"   ({', '.join(self.where[:3])}{', …' if len(self.where) > 3 else ''})"
        for reason, count in sorted(self.fallbacks.items()):
            text += f"; fell back in {count} calls: {reason}"
        return text


def _versions(inputs: Sequence[torch.Tensor], positions: Iterable[int]) -> dict[int, tuple[int, int]]:
    return {i: (inputs[i].data_ptr(), inputs[i]._version) for i in positions}


def register_subgraph(subgraph: Subgraph) -> int:
    """The number that the operator takes for this subgraph, valid while the subgraph lives."""
    handle = next(_handles)
    _subgraphs[handle] = subgraph
    return handle


def _apart(results: list[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Clone results that share memory: the operator's schema declares no aliases."""
    seen = {x.untyped_storage().data_ptr() for x in inputs if x.numel()}
    apart = []
    for result in results:
        address = result.untyped_storage().data_ptr()
        if result.numel() and address in seen:
            result = result.clone(memory_format=torch.preserve_format)
            address = result.untyped_storage().data_ptr()
        seen.add(address)
        apart.append(result)
    return apart


def _run(inputs: list[torch.Tensor], subgraph: int) -> list[torch.Tensor]:
    found = _subgraphs.get(subgraph)
    if found is None:
        raise RuntimeError(f"accelerator subgraph {subgraph} is gone: its compiled function no longer exists")
    return found.run(inputs)


def _fake(inputs: list[torch.Tensor], subgraph: int) -> list[torch.Tensor]:
    found = _subgraphs.get(subgraph)
    if found is None:
        raise RuntimeError(f"accelerator subgraph {subgraph} is gone")
    return list(found.body(*inputs))


_library.impl("run", _run, "CompositeExplicitAutograd")
_library.impl("run", _fake, "Meta")
