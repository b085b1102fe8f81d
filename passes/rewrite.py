"""Inserts calls into a graph, with the metadata that every call needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from staticrt.passes.base import tensor_meta
from staticrt.passes.symbols import same_meta
from staticrt.shapes import fake_memo
from staticrt.shapes.fake_rules import fake_by_rule


def insert_call(
    before: fx.Node,
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    value: Any = None,
) -> fx.Node:
    """A call of `op` in front of node `before`, with the fake value that these arguments give.

    The model line is that of `before`. Adds no guard on symbolic sizes.

    Args:
        value: the fake value; computed by the op's meta function if not given.

    Raises:
        Exception: what `op` raises for arguments that it does not take; the graph is then unchanged.
    """
    kwargs = kwargs or {}
    if value is None:
        value = fake_value(op, args, kwargs)
    with before.graph.inserting_before(before):
        node = before.graph.call_function(op, tuple(args), kwargs)
    node.meta = {k: v for k, v in before.meta.items() if k in ("stack_trace", "nn_module_stack")}
    node.meta["val"] = value
    return node


def replace_if_same(
    node: fx.Node, new: fx.Node, same: Callable[[torch.Tensor, torch.Tensor], bool] = same_meta
) -> bool:
    """Replace `node` by `new` if their metadata are the same; else erase `new`."""
    before, after = tensor_meta(node), tensor_meta(new)
    if before is None or after is None or not same(before, after):
        node.graph.erase_node(new)
        return False
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
    return True


def fake_value(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What `op` returns for the fake values of these arguments."""
    fake_args: Any = fx.map_arg(tuple(args), lambda n: n.meta["val"])
    fake_kwargs: Any = fx.map_arg(kwargs, lambda n: n.meta["val"])
    tensors = list(_tensors_in((*fake_args, *fake_kwargs.values())))
    mode = _mode_of(tensors)
    key = None
    if mode is not None and all(isinstance(t, FakeTensor) for t in tensors):
        # Neither needs the mode entered, which takes as long as a rule.
        with _no_guards(mode):
            value = fake_by_rule(mode, op, fake_args, fake_kwargs)
            if value is not None:
                return value
            key = fake_memo.key_of(op, fake_args, fake_kwargs)
            value = None if key is None else fake_memo.recall(mode, *key)
            if value is not None:
                return value
    with fake_mode_of(*tensors):
        value = op(*fake_args, **fake_kwargs)
        if key is not None:
            fake_memo.remember(mode, *key, value)
        return value


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def _mode_of(tensors: Sequence[torch.Tensor]) -> FakeTensorMode | None:
    return next((t.fake_mode for t in tensors if isinstance(t, FakeTensor)), None)


def _no_guards(mode: FakeTensorMode | None) -> contextlib.AbstractContextManager[Any]:
    env = None if mode is None else mode.shape_env
    return contextlib.nullcontext() if env is None else env.suppress_guards()


@contextlib.contextmanager
def fake_mode_of(*tensors: torch.Tensor) -> Iterator[FakeTensorMode | None]:
    """Run operators in the mode of these fake tensors, without gradients and new guards."""
    mode = _mode_of(tensors)
    # Composite operators in C++ may support concrete sizes only; their Python decompositions support symbols.
    with torch.no_grad(), enable_python_dispatcher(), mode or contextlib.nullcontext(), _no_guards(mode):
        yield mode
