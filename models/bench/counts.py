"""How much work a model is: floating-point operations and bytes, counted while eager runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from staticrt.models.zoo import Entry

aten = torch.ops.aten
# These read only some rows of their first argument: operator -> position of the indices.
ROW_READERS: dict[Any, int] = {
    aten.embedding.default: 1,
    aten._embedding_bag_forward_only.default: 1,
    aten._embedding_bag.default: 1,
    aten.index_select.default: 2,
}


def _recurrent_flop(
    input_shape: Sequence[int], input_weight: Sequence[int], hidden_weight: Sequence[int], *_: Any, **__: Any
) -> int:
    """Both matrix products of one LSTM layer: input [seq, batch, features], weights [4 * hidden, ...]."""
    positions = input_shape[0] * input_shape[1]
    return int(2 * positions * input_weight[0] * (input_weight[1] + hidden_weight[1]))


class ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes moved.

    Attributes:
        traffic_bytes: what all operators read and write, each by itself, views aside.
        read_bytes: for each storage that existed before, by address: bytes read of it, at most its size.
        ops: operators run, views included.
    """

    def __init__(self, existing: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in existing}
        self.read_bytes = dict.fromkeys(self.sizes, 0)
        self.traffic_bytes = 0
        self.ops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.ops += 1
        returns = func._schema.returns if hasattr(func, "_schema") else ()
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return out  # a view moves nothing
        for position, tensor in enumerate(x for x in pytree.tree_leaves(args) if isinstance(x, Tensor)):
            read = _bytes(tensor)
            if position == 0 and func in ROW_READERS:
                rows = args[ROW_READERS[func]].numel()
                read = min(read, rows * tensor[0].numel() * tensor.element_size())
            self.traffic_bytes += read
            address = tensor.untyped_storage().data_ptr()
            if address in self.sizes:
                self.read_bytes[address] = min(self.sizes[address], self.read_bytes[address] + read)
        self.traffic_bytes += sum(_bytes(x) for x in pytree.tree_leaves(out) if isinstance(x, Tensor))
        return out


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def count(entry: Entry, seed: int) -> dict[str, Any]:
    """Count `entry` at its default sizes.

    Returns:
        flops: operations of matrix products, convolutions, attention and recurrent layers, a multiply-add as two;
            None where the model has control flow, whose operators torch's counters cannot see into.
        min_bytes: parameters, buffers and inputs as far as they are read, each once, and outputs.
        traffic_bytes: the sum over all operators as eager runs them.
        ops, parameter_bytes.
    """
    module, arguments = entry.build(seed), entry.inputs(seed + 1)
    existing = [*module.parameters(), *module.buffers(), *arguments]
    parameter_bytes = sum(_bytes(p) for p in module.parameters())
    counted: dict[str, Any] = {"parameter_bytes": parameter_bytes}
    flop_counter = FlopCounterMode(display=False, custom_mapping={aten.mkldnn_rnn_layer: _recurrent_flop})
    byte_counter = ByteCounter(existing)
    try:
        with torch.no_grad(), flop_counter, byte_counter:
            out = module(*arguments)
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        return counted | dict.fromkeys(("flops", "min_bytes", "traffic_bytes", "ops")) | {"reason": reason}
    written = sum(_bytes(x) for x in pytree.tree_leaves(out) if isinstance(x, Tensor))
    return counted | {
        "flops": flop_counter.get_total_flops(),
        "min_bytes": sum(byte_counter.read_bytes.values()) + written,
        "traffic_bytes": byte_counter.traffic_bytes,
        "ops": byte_counter.ops,
    }
