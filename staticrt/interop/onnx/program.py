"""A model as steps over named values, and how they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.errors import OnnxError, StaticRuntimeError
from staticrt.frontend import reasons
from staticrt.frontend.reasons import CannotTrace
from staticrt.interop.onnx.numbers import Numbers
from staticrt.interop.onnx.registry import Call, Operator
from staticrt.interop.onnx.strings import Strings


def recording() -> bool:
    """Whether staticrt or torch.export is tracing in this thread."""
    return torch._C._len_torch_dispatch_stack() > 0 or torch.compiler.is_exporting()


@dataclasses.dataclass(eq=False)
class Program:
    """A graph, a sub-graph or the body of a function.

    Args:
        name: for messages.
        constants: name -> numbers, strings, or the number of one of the module's tensors.
        free: names it takes from the graphs around it.
        rows: output -> its value after a loop without iterations: zero rows of the declared shape. Sizes that
            the model leaves open are 0 there, also where it leaves the rank open, as in ONNX Runtime.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    constants: dict[str, Numbers | Strings | int]
    free: frozenset[str]
    rows: dict[str, tuple[tuple[int, ...], torch.dtype]] = dataclasses.field(default_factory=dict)

    def no_rows(self, first: int) -> list[torch.Tensor]:
        """The empty results of a loop without iterations, for outputs from number `first` on."""
        found = []
        for name in self.outputs[first:]:
            shape, dtype = self.rows.get(name, ((), torch.float32))
            found.append(torch.empty((0, *shape), dtype=dtype))
        return found

    def run(self, scope: Scope, arguments: Sequence[Any], wanted: Sequence[str] | None = None) -> list[Any]:
        """Outputs for positional arguments.

        Args:
            scope: made for this run.
            wanted: per output, "" if the caller drops it; None: all are wanted.
        """
        values = scope.values
        for name, constant in self.constants.items():
            values[name] = scope.tensors[constant] if isinstance(constant, int) else constant
        for name, value in zip(self.inputs, arguments, strict=True):
            if name:
                values[name] = value
        in_record = recording()
        previous = reasons.location()
        try:
            for step in self.steps:
                if in_record:
                    reasons.set_location(step.location)
                step.run(scope, in_record)
        finally:
            if in_record:
                reasons.set_location(previous)
        if wanted is None:
            return [scope.get(name) for name in self.outputs]
        return [scope.get(name) if want else None for name, want in zip(self.outputs, wanted, strict=False)]


@dataclasses.dataclass(eq=False)
class Step:
    """One node.

    Args:
        label: "Conv 'conv1'", for messages.
        location: (model, number, operator, text) for the lines that explain() shows.
        inputs, outputs: names; "" where absent.
        last: names that no later step reads.
    """

    operator: Operator
    label: str
    location: tuple[str, int, str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    opset: int
    last: tuple[str, ...] = ()

    def run(self, scope: Scope, in_record: bool) -> None:
        inputs = [scope.get(name) if name else None for name in self.inputs]
        try:
            found = self.operator.run(inputs, self.attributes, Call(self.opset, self.outputs, scope))
        except CannotTrace as error:
            error.where = error.where or self.label
            raise
        except OnnxError as error:
            raise self._placed(error) from error
        except StaticRuntimeError:
            raise
        except Exception as error:
            if in_record:  # the trace fails, and the eager run that follows raises this error
                raise
            text = str(error).strip().split("\n")[0] or type(error).__name__
            raise OnnxError(
                f"{self.operator.name} failed: {text}",
                at=f"{self.label} of {self.location[0]}",
                fix="check the shapes and types of the inputs against the model",
            ) from error
        if not isinstance(found, tuple):
            found = (found,)
        if len(self.outputs) > len(found):
            raise OnnxError(
                f"{self.operator.name} gives {len(found)} outputs, {len(self.outputs)} are wanted",
                at=self.label,
            )
        for name, value in zip(self.outputs, found, strict=False):
            if name:
                scope.values[name] = value
        for name in self.last:
            scope.values.pop(name, None)

    def _placed(self, error: OnnxError) -> OnnxError:
        """Add the place in the model to an error of this node's builder, or of a node inside it."""
        if error.at is None:
            return OnnxError(error.message, at=f"{self.label} of {self.location[0]}", fix=error.fix)
        if isinstance(self.operator.function, FunctionBody):
            return OnnxError(error.message, at=f"{error.at}, in {self.label}", fix=error.fix)
        return error


class Scope:
    """Values by name, and those of the graphs around.

    Args:
        tensors: the module's tensors by number.
        outer: the scope around, or None.
    """

    __slots__ = ("outer", "tensors", "values")

    def __init__(self, tensors: Sequence[torch.Tensor], outer: Scope | None = None) -> None:
        self.tensors = tensors
        self.outer = outer
        self.values: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise OnnxError(
            f"value {name!r} is used before it is computed", fix="the model is invalid; export it again"
        )

    def body(self, program: Program) -> Callable[..., list[Any]]:
        """A sub-graph as a function of its inputs."""
        return lambda *arguments: program.run(Scope(self.tensors, self), arguments)


@dataclasses.dataclass(eq=False)
class FunctionBody:
    """Computes a call of an ONNX function. Its body accesses only its own values."""

    program: Program

    def __call__(self, *inputs: Any, call: Call) -> tuple[Any, ...]:
        padded = [*inputs, *[None] * (len(self.program.inputs) - len(inputs))]
        return tuple(self.program.run(Scope(call.scope.tensors), padded, call.outputs))


def function_operator(name: str, domain: str, program: Program) -> Operator:
    """A function's body as an operator."""
    return Operator(
        name,
        domain,
        1,
        FunctionBody(program),
        (),
        "value",
        0,
        frozenset(),
        wants_call=True,
        host=None,
        pure=False,
    )
