"""Record control flow: `cond`, `while_loop`, `scan`, `map`.

Each body is recorded by a child tracer over the same fake mode. What a body uses from outside (tensors, sizes)
becomes an extra operand. A body is functional: it may write only what it made itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing import unread_errors
from staticrt.frontend.tracing.tracer import Tracer
from staticrt.shapes import fake_results
from staticrt.shapes.size_env import SizeEnv

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclasses.dataclass
class Body:
    """A recorded body.

    Args:
        tracer: holds its graph, without an output node.
        outputs: graph form of its flat outputs; `values` are their fakes.
        spec: pytree structure of what it returned.
    """

    tracer: Tracer
    outputs: list[Any]
    values: list[Any]
    spec: Any
    operands: list[fx.Node]


def record(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of a higher-order operator."""
    names: dict[str, Callable[..., Any]] = {
        "cond": _cond,
        "while_loop": _while_loop,
        "scan": _scan,
        "map_impl": _map,
    }
    recorder = names.get(func.name())
    if recorder is None:
        raise CannotTrace(f"higher-order operator {func.name()}")
    return recorder(tracer, func, *args, **kwargs)


def _trace_body(parent: Tracer, function: Callable[..., Any], operands: Sequence[Any], what: str) -> Body:
    from staticrt.frontend.functionalize.functionalize import functionalize

    child = Tracer(parent.fake_mode, parent.watcher, parent=parent, control_flow=record)
    nodes: list[fx.Node] = []
    for index, operand in enumerate(operands):
        node = child.graph.placeholder(f"operand_{index}")
        node.meta["val"] = operand
        if isinstance(operand, torch.Tensor):
            child.tensors.track(operand, node)
        elif isinstance(operand, _SYMBOLS) and operand.node.expr.is_Symbol:
            child.symbols.define(operand.node.expr, node)
        nodes.append(node)
    with child:
        if parent.watcher is not None:
            parent.watcher.resume()
        try:
            result = function(*operands)
        finally:
            if parent.watcher is not None:
                parent.watcher.pause()
    values, spec = pytree.tree_flatten(result)
    written: set[fx.Node] = set()
    if child.writes:
        child, outputs, written = functionalize(child, values)
        nodes = child.graph.find_nodes(op="placeholder")[: len(operands)]
    else:
        outputs = [child.argument(value) for value in values]
    if written:
        raise CannotTrace(f"the body of {what} writes a tensor from outside")
    for value in values:
        if value is not None and not isinstance(value, (torch.Tensor, *_SYMBOLS, int, float, bool)):
            raise CannotTrace(f"the body of {what} returns a {type(value).__name__}")
    _own_outputs(child, outputs, values, nodes)
    return Body(child, outputs, values, spec, nodes)


def _own_outputs(child: Tracer, outputs: list[Any], values: list[Any], operands: list[fx.Node]) -> None:
    """Clone outputs that alias operands, things from outside, or each other."""
    taken = {
        node.meta["val"].untyped_storage()._cdata
        for node in child.graph.find_nodes(op="placeholder")
        if isinstance(node.meta["val"], torch.Tensor)
    }
    for index, node in enumerate(outputs):
        if not isinstance(node, fx.Node) or not isinstance(node.meta["val"], torch.Tensor):
            continue
        storage = node.meta["val"].untyped_storage()._cdata
        if storage in taken:
            with child.fake_mode, child:
                values[index] = torch.ops.aten.clone.default(node.meta["val"])
            outputs[index] = child.argument(values[index])
        else:
            taken.add(storage)


def _join(parent: Tracer, bodies: Sequence[Body]) -> list[Any]:
    """Give all bodies the same extra operands, in one order; return them as values of the parent."""
    extras: dict[Any, Any] = {}
    for body in bodies:
        extras.update(body.tracer.inputs.outer)
    for body in bodies:
        graph = body.tracer.graph
        anchor = next((node for node in graph.nodes if node.op != "placeholder"), None)
        for key, (value, _node) in extras.items():
            own = body.tracer.inputs.outer.get(key)
            if own is not None:
                node = own[1]
            else:
                node = graph.create_node("placeholder", f"outer_{len(graph.nodes)}")
                node.meta["val"] = value
            if anchor is None:
                continue
            anchor.prepend(node)
    return [value for value, _node in extras.values()]


def _module(parent: Tracer, body: Body, name: str) -> fx.Node:
    """Attach a body to the parent's graph; return its get_attr node."""
    body.tracer.graph.output(body.outputs[0] if name == "while_cond" else tuple(body.outputs))
    unread_errors.mark(body.tracer.graph)
    number = len(parent.bodies)
    target = f"{name}_{number}"
    module = _LazyGraphModule(body_holder(body.tracer), body.tracer.graph)
    parent.bodies[target] = module
    node = parent.graph.get_attr(target)
    node.meta["val"] = None
    return node


def body_holder(tracer: Tracer) -> torch.nn.Module:
    """A module with the bodies that a graph's get_attr nodes name."""
    holder = torch.nn.Module()
    for name, module in tracer.bodies.items():
        setattr(holder, name, module)
    return holder


def _emit(parent: Tracer, func: Any, args: tuple[Any, ...], out: Sequence[Any]) -> list[Any]:
    node = parent.graph.create_node("call_function", func, args, {})
    parent.annotate(node)
    node.meta["val"] = tuple(out)
    parent._track_output(node, tuple(out))
    fresh = [fake_results.expression(number) for value in out for number in _numbers(value)]
    parent.unbacked.bind(node, tuple(out), [expr for expr in fresh if parent.unbacked.is_fresh(expr)])
    return list(out)


def _numbers(value: Any) -> Sequence[Any]:
    """The symbolic numbers that a fake value shows."""
    found = value.shape if isinstance(value, torch.Tensor) else [value]
    return [number for number in found if isinstance(number, torch.SymInt)]


def _fresh_like(tracer: Tracer, value: Any, leading: Any = None, drop: bool = False) -> Any:
    """A fake of the same metadata that shares nothing; with one more leading dimension, or without its first."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, *_SYMBOLS)):
            raise CannotTrace(f"control flow carries a {type(value).__name__}")
        return tracer.unbacked.new()
    sizes, strides = list(value.shape), list(value.stride())
    if drop:
        sizes, strides = sizes[1:], strides[1:]
    if leading is not None:
        return fake_results.fresh(tracer.fake_mode, [leading, *sizes], None, value.dtype, value.device)
    return fake_results.fresh(tracer.fake_mode, sizes, strides, value.dtype, value.device)


def _cond(tracer: Tracer, func: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    if isinstance(pred, (bool, int, float)):
        with tracer:
            return (true_fn if pred else false_fn)(*operands)
    leaves, spec = pytree.tree_flatten(operands)
    leaves = [tracer._fake(leaf) for leaf in leaves]

    def flat(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *flat_args: function(*pytree.tree_unflatten(flat_args, spec))

    bodies = [_trace_body(tracer, flat(fn), leaves, "torch.cond") for fn in (true_fn, false_fn)]
    if bodies[0].spec != bodies[1].spec:
        raise CannotTrace("the branches of torch.cond return different structures")
    out = [_either(tracer, a, b) for a, b in zip(bodies[0].values, bodies[1].values, strict=True)]
    extras = _join(tracer, bodies)
    nodes = [_module(tracer, body, "branch") for body in bodies]
    args = (tracer.argument(tracer._fake(pred)), *nodes, tuple(tracer.argument([*leaves, *extras])))
    return pytree.tree_unflatten(_emit(tracer, func, args, out), bodies[0].spec)


def _either(tracer: Tracer, a: Any, b: Any) -> Any:
    """The fake of a value that is `a` or `b`."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        if a is None and b is None:
            return None
        if isinstance(a, (int, *_SYMBOLS)) and isinstance(b, (int, *_SYMBOLS)) and not isinstance(a, bool):
            return tracer.unbacked.new()
        raise CannotTrace("the branches of torch.cond return values that are not tensors")
    if a.dtype != b.dtype or a.dim() != b.dim() or a.device != b.device:
        raise CannotTrace("the branches of torch.cond return tensors of different dtype, rank or device")
    same = [
        fake_results.expression(x) == fake_results.expression(y)
        for x, y in zip(a.shape, b.shape, strict=True)
    ]
    if all(same):
        return _fresh_like(tracer, a)
    sizes = [x if equal else tracer.unbacked.new(size=True) for x, equal in zip(a.shape, same, strict=True)]
    return fake_results.fresh(tracer.fake_mode, sizes, None, a.dtype, a.device)


def _while_loop(tracer: Tracer, func: Any, cond_fn: Any, body_fn: Any, carried: Any, additional: Any) -> Any:
    start = [tracer._fake(value) for value in carried]
    constants = [tracer._fake(value) for value in additional]
    state = [_fresh_like(tracer, value) for value in start]
    test = _trace_body(tracer, cond_fn, [*state, *constants], "while_loop")
    step = _trace_body(tracer, body_fn, [*state, *constants], "while_loop")
    _check_carried(tracer, start, step.values, "while_loop")
    out = [_fresh_like(tracer, value) for value in start]
    extras = _join(tracer, [test, step])
    nodes = [_module(tracer, test, "while_cond"), _module(tracer, step, "while_body")]
    args = (*nodes, tuple(tracer.argument(start)), tuple(tracer.argument([*constants, *extras])))
    return pytree.tree_unflatten(_emit(tracer, func, args, out), step.spec)


def _check_carried(tracer: Tracer, start: Sequence[Any], new: Sequence[Any], what: str) -> None:
    if len(start) != len(new):
        raise CannotTrace(f"the body of {what} returns {len(new)} values for {len(start)} carried ones")
    for before, after in zip(start, new, strict=True):
        if isinstance(before, torch.Tensor) != isinstance(after, torch.Tensor):
            raise CannotTrace(f"{what} carries a tensor that becomes a number, or the other way round")
        if isinstance(before, torch.Tensor) and (
            before.dtype != after.dtype
            or [*map(fake_results.expression, before.shape)] != [*map(fake_results.expression, after.shape)]
        ):
            if isinstance(tracer.shape_env, SizeEnv):
                tracer.shape_env.give_up(what)  # torch's may know that the sizes are equal
            raise CannotTrace(f"{what} changes the shape or dtype of a carried tensor")


def _scan(tracer: Tracer, func: Any, combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    start = [tracer._fake(value) for value in init]
    rows = [tracer._fake(value) for value in xs]
    constants = [tracer._fake(value) for value in additional_inputs]
    state = [_fresh_like(tracer, value) for value in start]
    items = [_fresh_like(tracer, value, drop=True) for value in rows]
    body = _trace_body(tracer, combine_fn, [*state, *items, *constants], "scan")
    _check_carried(tracer, start, body.values[: len(start)], "scan")
    length = rows[0].shape[0]
    out = [_fresh_like(tracer, value) for value in start]
    out += [_fresh_like(tracer, value, leading=length) for value in body.values[len(start) :]]
    extras = _join(tracer, [body])
    node = _module(tracer, body, "scan_body")
    args = (
        node,
        tracer.argument(start),
        tracer.argument(rows),
        tuple(tracer.argument([*constants, *extras])),
    )
    return pytree.tree_unflatten(_emit(tracer, func, args, out), body.spec)


def _map(tracer: Tracer, func: Any, f: Any, xs: Any, pos_args: Any) -> Any:
    rows = [tracer._fake(value) for value in xs]
    constants = [tracer._fake(value) for value in pos_args]
    items = [_fresh_like(tracer, value, drop=True) for value in rows]
    body = _trace_body(tracer, f, [*items, *constants], "map")
    out = [_fresh_like(tracer, value, leading=rows[0].shape[0]) for value in body.values]
    extras = _join(tracer, [body])
    node = _module(tracer, body, "map_body")
    args = (node, tracer.argument(rows), tracer.argument([*constants, *extras]))
    return pytree.tree_unflatten(_emit(tracer, func, args, out), body.spec)


def sequential_scan(
    operator: Callable[..., Any], leaves: list[Any], dim: int = 0, additional_inputs: Any = ()
) -> Any:
    """`associative_scan` as a `scan` over dimension 0: one graph for every length from 2 on.

    torch's own version recurses on the length, so each length would need a trace. The operator is associative,
    so the order of combination only changes rounding.
    """
    if dim != 0:
        raise CannotTrace("associative_scan over a dimension other than 0")
    if leaves[0].shape[0] < 2:
        return [leaf.view_as(leaf) for leaf in leaves]
    scan_op = torch.ops.higher_order.scan

    def combine(*args: Any) -> Any:
        carry, items = args[: len(leaves)], args[len(leaves) :]
        batched = operator(
            *[c.unsqueeze(0) for c in carry], *[x.unsqueeze(0) for x in items], *additional_inputs
        )
        new = [value.squeeze(0) for value in pytree.tree_leaves(batched)]
        return [*new, *[value.clone() for value in new]]

    first = [leaf[0].clone() for leaf in leaves]
    rest = [leaf[1:] for leaf in leaves]
    out = scan_op(combine, first, rest, ())
    return [
        torch.cat([start.unsqueeze(0), rows]) for start, rows in zip(first, out[len(leaves) :], strict=True)
    ]
