"""Finds the inputs of a model whose values decide shapes, so that traces are specialised on these values.

`Reshape(x, shape)` with `shape` an input of the model: as data, no trace could know the result's rank. Such
inputs, found backwards from where numbers are needed, arrive as Python numbers; the first values are constants of
the trace, later ones symbols.
"""

from __future__ import annotations

from staticrt.interop.onnx.program import Program, Step

# Operators that propagate a need for numbers to their inputs: they move or compare elements without reducing them.
_THROUGH = frozenset([
    "Add", "And", "Cast", "CastLike", "Concat", "Div", "Equal", "Flatten", "Floor", "Gather", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Mod", "Mul", "Neg", "Not", "Or", "Reshape", "Slice",
    "Squeeze", "Sub", "Unsqueeze", "Where",
])  # fmt: skip


def deciding_inputs(program: Program) -> frozenset[str]:
    """Names of the program's inputs whose values decide shapes or branches."""
    return frozenset(needed_numbers(program)) & frozenset(program.inputs)


def needed_numbers(program: Program) -> set[str]:
    """Names of this program, or of enclosing ones, whose values are needed as numbers."""
    needed: set[str] = set()
    for step in reversed(program.steps):
        needed |= _of_step(step, needed)
    return needed


def _of_step(step: Step, needed: set[str]) -> set[str]:
    found = {
        name for index, name in enumerate(step.inputs) if name and step.operator.kind(index) == "numbers"
    }
    if step.operator.name in _THROUGH and step.operator.host is not None and needed & set(step.outputs):
        found |= set(filter(None, step.inputs))
    if step.operator.name == "If" and not step.operator.domain:
        found.add(step.inputs[0])
    for value in step.attributes.values():
        if isinstance(value, Program):
            found |= needed_numbers(value) & value.free
    return found
