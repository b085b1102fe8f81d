"""If, Loop and Scan.

What is decided while tracing (by sizes, constants, deciding inputs) disappears: the branch taken is recorded, a
short loop is unrolled. What data decide becomes torch's `cond`, `while_loop` or `scan`, which the runtime runs;
where those cannot say it (a branch that returns another rank, a loop that grows a sequence) the model runs eagerly,
with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.errors import OnnxError
from staticrt.frontend.reasons import CannotTrace
from staticrt.interop.onnx.arguments import Ints, Value, axis_of
from staticrt.interop.onnx.numbers import SYMBOLIC, Numbers, Tensor, as_tensor, known_tensor, objects
from staticrt.interop.onnx.program import Program, recording
from staticrt.interop.onnx.registry import Call, op

_MAX_UNROLLED = 32  # the most iterations for which a loop is unrolled


def _tensors(values: Sequence[Any], what: str) -> list[Tensor]:
    found = [as_tensor(value) for value in values]
    for value in found:
        if not isinstance(value, Tensor):
            raise CannotTrace(f"{what} on data gives a sequence or an optional value")
    return found


@op("If")
def if_(condition: Value, *, then_branch: Program, else_branch: Program, call: Call) -> Any:
    branches = [call.scope.body(then_branch), call.scope.body(else_branch)]
    if isinstance(condition, Numbers):
        return tuple(branches[0 if condition.item() else 1]())
    if condition.numel() != 1:
        raise OnnxError(f"If takes one boolean, got shape {list(condition.shape)}")
    if not recording():
        return tuple(branches[0 if bool(condition) else 1]())
    first, second = [lambda run=run: _fresh(_tensors(run(), "If")) for run in branches]
    return tuple(torch.cond(condition.reshape(()), first, second, ()))


def _fresh(values: list[Tensor]) -> tuple[Tensor, ...]:
    """Copies of a body's results, so that none of them is a tensor from outside."""
    return tuple(value.clone() for value in values)


def _always(program: Program, position: int) -> bool:
    """Whether the graph shows that a loop's body always leaves its condition true."""
    name = program.outputs[position]
    constant = program.constants.get(name)
    if isinstance(constant, Numbers):
        return bool(constant.item())
    given = program.inputs[1]
    for step in program.steps:
        if name in step.outputs:
            return step.operator.name == "Identity" and step.inputs == (given,)
    return name == given


@op("Loop")
def loop(trips: Value = None, condition: Value = None, *initial: Value, body: Program, call: Call) -> Any:
    run = call.scope.body(body)
    count = len(initial)
    if len(body.inputs) != 2 + count or len(body.outputs) < 1 + count:
        raise OnnxError(f"Loop carries {count} values, its body takes {len(body.inputs)}")
    endless = _always(body, 0)
    start: Any = True if condition is None else _decided(condition)
    limit = None if trips is None else _decided(trips)
    if not recording():
        return _eager_loop(run, limit, start, list(initial), body)
    if start is False:
        return _eager_loop(run, 0, start, list(initial), body)
    if endless and start is True and isinstance(limit, int) and limit <= _MAX_UNROLLED:
        return _eager_loop(run, limit, True, list(initial), body)
    if endless and start is True and limit is not None:
        return _counted_loop(run, limit, list(initial))
    if len(body.outputs) > 1 + count:
        raise CannotTrace("Loop with an end that data decides collects values of each iteration")
    return _conditional_loop(run, limit, start, list(initial))


def _decided(value: Any) -> Any:
    """A Python number if the value is known, else the tensor."""
    return (
        value.item()
        if isinstance(value, Numbers)
        else value.reshape(())
        if isinstance(value, Tensor)
        else value
    )


def _eager_loop(
    run: Callable[..., Any], limit: Any, start: Any, state: list[Any], body: Program
) -> tuple[Any, ...]:
    """The loop in Python: unrolled in a trace, and used by eager runs."""
    rows: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(state) :]]
    last = None if limit is None else int(limit)
    going, index = bool(start), 0
    while going and (last is None or index < last):
        outputs = run(
            Numbers(objects([index], ()), torch.int64), Numbers(objects([True], ()), torch.bool), *state
        )
        going_now = outputs[0]
        going = bool(going_now.item()) if isinstance(going_now, (Numbers, Tensor)) else bool(going_now)
        state = list(outputs[1 : 1 + len(state)])
        for row, value in zip(rows, outputs[1 + len(state) :], strict=True):
            row.append(as_tensor(value))
        index += 1
    if index == 0:
        return (*state, *body.no_rows(1 + len(state)))
    return (*state, *(torch.stack(row) for row in rows))


def _counted_loop(run: Callable[..., Any], limit: Any, initial: list[Any]) -> tuple[Any, ...]:
    """A loop of `limit` iterations as a scan over the iteration numbers."""
    start = [value.clone() for value in _tensors(initial, "Loop")]
    if isinstance(limit, Tensor):
        limit = limit.item()
    if isinstance(limit, SYMBOLIC):
        torch._check(limit >= 0)  # type: ignore[no-untyped-call, operator]
    numbers = torch.arange(limit)

    def step(state: list[Tensor], items: Any) -> tuple[list[Tensor], list[Tensor]]:
        (number,) = items
        outputs = _tensors(run(number, known_tensor([True], (), torch.bool), *state)[1:], "Loop")
        return list(_fresh(outputs[: len(state)])), list(_fresh(outputs[len(state) :]))

    carried, rows = _scan(step, start, [numbers])
    return (*carried, *rows)


def _scan(
    step: Callable[..., Any], state: list[Tensor], rows: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """torch's scan over dimension 0 without the checks of the wrapper, which run the body."""
    out = torch.ops.higher_order.scan(
        lambda *flat: [v for part in step(list(flat[: len(state)]), list(flat[len(state) :])) for v in part],
        state,
        rows,
        (),
    )
    return list(out[: len(state)]), list(out[len(state) :])


def _conditional_loop(run: Callable[..., Any], limit: Any, start: Any, initial: list[Any]) -> tuple[Any, ...]:
    state = [value.clone() for value in _tensors(initial, "Loop")]
    going = start if isinstance(start, Tensor) else known_tensor([bool(start)], (), torch.bool)
    most = (
        None
        if limit is None
        else limit
        if isinstance(limit, Tensor)
        else torch.full((), limit, dtype=torch.int64)
    )

    def test(index: Tensor, going: Tensor, *state: Tensor) -> Tensor:
        return going.clone() if most is None else torch.logical_and(going, index < most)

    def step(index: Tensor, going: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        outputs = _tensors(run(index, going, *state), "Loop")
        return (index + 1, *_fresh([outputs[0].reshape(()), *outputs[1:]]))

    first = torch.zeros((), dtype=torch.int64)
    out = torch.ops.higher_order.while_loop(test, step, (first, going.clone(), *state), ())
    return tuple(out[2:])


@op("Scan", since=9)
def scan(
    *inputs: Value,
    body: Program,
    num_scan_inputs: int,
    scan_input_axes: Ints | None = None,
    scan_input_directions: Ints | None = None,
    scan_output_axes: Ints | None = None,
    scan_output_directions: Ints | None = None,
    call: Call,
) -> Any:
    run = call.scope.body(body)
    count = len(inputs) - num_scan_inputs
    values = [as_tensor(value) for value in inputs]
    state, rows = values[:count], []
    for index, value in enumerate(values[count:]):
        axis = axis_of((scan_input_axes or [0] * num_scan_inputs)[index], value.dim())
        row = value.movedim(axis, 0)
        rows.append(row.flip(0) if (scan_input_directions or [0] * num_scan_inputs)[index] else row)
    length: Any = rows[0].shape[0]
    if (type(length) is int and (length <= _MAX_UNROLLED or not recording())) or not recording():
        collected: list[list[Tensor]] = [[] for _ in body.outputs[count:]]
        for position in range(int(length)):
            outputs = [as_tensor(v) for v in run(*state, *(row[position] for row in rows))]
            state = outputs[:count]
            for column, value in zip(collected, outputs[count:], strict=True):
                column.append(value)
        stacked = [torch.stack(column) for column in collected] if length else body.no_rows(count)
    else:

        def step(state: list[Tensor], items: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            outputs = _tensors(run(*state, *items), "Scan")
            return list(_fresh(outputs[:count])), list(_fresh(outputs[count:]))

        state, stacked = _scan(step, [v.clone() for v in state], rows)
    found = []
    for index, value in enumerate(stacked):
        if (scan_output_directions or [0] * len(stacked))[index]:
            value = value.flip(0)
        axis = (scan_output_axes or [0] * len(stacked))[index]
        found.append(value.movedim(0, axis_of(axis, value.dim())))
    return (*state, *found)


@op("Scan")
def scan_8(
    lengths: Tensor | None = None,
    *inputs: Value,
    body: Program,
    num_scan_inputs: int,
    directions: Ints | None = None,
    call: Call,
) -> Any:
    """Version 8 has a batch dimension: each sequence is scanned on its own."""
    if lengths is not None:
        raise OnnxError("Scan of version 8 with sequence lengths", fix="convert the model to opset 11")
    batch = int(as_tensor(inputs[0]).shape[0])
    parts = [
        scan(
            *[as_tensor(value)[row] for value in inputs],
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
            call=call,
        )
        for row in range(batch)
    ]
    return tuple(torch.stack(list(column)) for column in zip(*parts, strict=True))
