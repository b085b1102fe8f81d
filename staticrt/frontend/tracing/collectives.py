"""Collectives that write their tensors (`torch.distributed.all_reduce(x)`), recorded as functional ones.

Their schemas do not say what they write, and waiting for them is not an operator: recorded as they are, later operators
would read data that has not arrived yet. The functional form returns its result and waits by an operator; the
result is then copied to where eager has it. One that is started with `async_op=True` is waited for at once: what its
tensors hold before the caller waits is undefined in eager, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staticrt.frontend.reasons import CannotTrace


def functional(func: Any) -> Callable[..., Any]:
    """What to call, with the tracer first, in place of an operator of the namespace `c10d`.

    Raises:
        CannotTrace: it has no functional form.
    """
    rewritten = _REWRITES.get(func._schema.name.removeprefix("c10d::"))
    if rewritten is None:
        raise CannotTrace(f"{func}, a collective without a functional form")
    return rewritten


def _ops() -> Any:
    # Registers the operators; a graph without collectives needs none of torch.distributed.
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional


def _wait(result: torch.Tensor) -> torch.Tensor:
    waited: torch.Tensor = _ops().wait_tensor.default(result)
    return waited


def _done() -> Any:
    """Finished work: a graph does not wait for it."""
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()  # type: ignore[attr-defined]


def _group(group: Any) -> Any:
    from torch.distributed import ProcessGroup

    return ProcessGroup.unbox(group)  # type: ignore[attr-defined]


def _reduction(boxed: Any) -> str:
    """The name of a reduction, as functional collectives know it."""
    from torch.distributed import ReduceOp

    kind = ReduceOp.RedOpType(int(boxed.op()))
    if kind == ReduceOp.PREMUL_SUM:
        raise CannotTrace("a reduction with a factor (PREMUL_SUM), which has no functional form")
    return str(kind.name).lower()


def _all_reduce(
    tracer: Any, tensors: Any, group: Any, op: Any, sparse_indices: Any = None, *_rest: Any
) -> Any:
    if sparse_indices is not None:
        raise CannotTrace("all_reduce of a sparse tensor")
    name, kind = _group(group).group_name, _reduction(op)
    for tensor in tensors:
        tensor.copy_(_wait(_ops().all_reduce.default(tensor, kind, name)))
    return tensors, _done()


def _broadcast(tracer: Any, tensors: Any, group: Any, root: int, *_rest: Any) -> Any:
    name = _group(group).group_name
    for tensor in tensors:
        tensor.copy_(_wait(_ops().broadcast.default(tensor, root, name)))
    return tensors, _done()


def _gathered(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """All ranks' tensors, one behind the other: `[ranks, ...]`."""
    group = _group(group)
    flat = tensor.reshape(-1)
    every = _wait(_ops().all_gather_into_tensor.default(flat, group.size(), group.group_name))
    return every.view(group.size(), *tensor.shape)


def _all_gather_into(tracer: Any, output: torch.Tensor, tensor: torch.Tensor, group: Any, *_rest: Any) -> Any:
    output.copy_(_gathered(tensor, group).view(output.shape))
    return output, _done()


def _all_gather(tracer: Any, outputs: Any, tensors: Any, group: Any, *_rest: Any) -> Any:
    for pieces, tensor in zip(outputs, tensors, strict=True):
        if any(piece.shape != tensor.shape or piece.dtype != tensor.dtype for piece in pieces):
            raise CannotTrace("all_gather of tensors that differ between ranks")
        for piece, own in zip(pieces, _gathered(tensor, group).unbind(0), strict=True):
            piece.copy_(own)
    return outputs, _done()


def _reduce_scatter(
    tracer: Any, output: torch.Tensor, tensor: torch.Tensor, group: Any, op: Any, *_rest: Any
) -> Any:
    kind, group = _reduction(op), _group(group)
    scattered = _ops().reduce_scatter_tensor.default(tensor.reshape(-1), kind, group.size(), group.group_name)
    output.copy_(_wait(scattered).view(output.shape))
    return output, _done()


def _all_to_all(
    tracer: Any,
    output: torch.Tensor,
    tensor: torch.Tensor,
    group: Any,
    output_splits: Any,
    input_splits: Any,
    *_rest: Any,
) -> Any:
    group = _group(group)
    ranks = group.size()
    output_splits = list(output_splits) or [output.shape[0] // ranks] * ranks
    input_splits = list(input_splits) or [tensor.shape[0] // ranks] * ranks
    sent = _ops().all_to_all_single.default(tensor, output_splits, input_splits, group.group_name)
    output.copy_(_wait(sent))
    return _done()


_REWRITES: dict[str, Callable[..., Any]] = {
    "allreduce_": _all_reduce,
    "broadcast_": _broadcast,
    "_allgather_base_": _all_gather_into,
    "allgather_": _all_gather,
    "_reduce_scatter_base_": _reduce_scatter,
    "alltoall_base_": _all_to_all,
}
