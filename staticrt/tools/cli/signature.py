"""What a server needs to know of a model: names, dtypes and sizes of inputs and outputs, found by calls with other sizes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError
from staticrt.tools.report.inspection import inspectable

# The names that the Open Inference Protocol (V2) and Triton's model configuration use.
DATATYPES = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
    torch.bfloat16: "BF16",
}
MAX_BATCH = 16  # the default of a model that takes batches; users may change it


@dataclasses.dataclass(frozen=True)
class TensorSignature:
    """One input or output; sizes that vary are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a model takes and gives.

    Args:
        batches: the first dimension of every input and output counts rows that do not depend on each other.
    """

    name: str
    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    batches: bool

    def to_v2(self) -> dict[str, Any]:
        """Model metadata of the Open Inference Protocol, which KServe and Triton speak."""

        def listed(tensors: Sequence[TensorSignature]) -> list[dict[str, Any]]:
            return [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in tensors]

        return {
            "name": self.name,
            "platform": "staticrt",
            "inputs": listed(self.inputs),
            "outputs": listed(self.outputs),
        }

    def to_triton(self, file_name: str) -> dict[str, Any]:
        """A model configuration of Triton, for `examples/triton_backend`."""

        def listed(tensors: Sequence[TensorSignature]) -> list[dict[str, Any]]:
            skipped = 1 if self.batches else 0
            return [
                {
                    "name": t.name,
                    "data_type": f"TYPE_{t.datatype}",
                    "dims": list(t.shape[skipped:]) or [1],
                    **({"reshape": {"shape": []}} if not t.shape[skipped:] else {}),
                }
                for t in tensors
            ]

        found: dict[str, Any] = {
            "name": self.name,
            "backend": "staticrt",
            "default_model_filename": file_name,
            "max_batch_size": MAX_BATCH if self.batches else 0,
            "input": listed(self.inputs),
            "output": listed(self.outputs),
            "instance_group": [{"kind": "KIND_CPU", "count": 1}],
            "parameters": {"threads": {"string_value": "1"}},
        }
        if self.batches:
            found["dynamic_batching"] = {}
            if all(size > 0 for t in self.inputs for size in t.shape[1:]):
                sizes = ",".join(str(size) for size in range(1, MAX_BATCH + 1))
                found["parameters"]["prepare"] = {"string_value": sizes}
        return found


def to_pbtxt(fields: dict[str, Any], indent: str = "") -> str:
    """A model configuration in protobuf's text format, as config.pbtxt holds it."""
    lines = []
    for name, value in fields.items():
        items = value if isinstance(value, list) else [value]
        if name == "parameters":
            items = [{"key": key, "value": inner} for key, inner in value.items()]
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            lines.append(f"{indent}{name}: {value}")
            continue
        for item in items:
            if isinstance(item, dict):
                inner = to_pbtxt(item, indent + "  ")
                lines.append(f"{indent}{name} {{\n{inner}\n{indent}}}" if item else f"{indent}{name} {{ }}")
            elif name in ("data_type", "kind"):  # an enumerator
                lines.append(f"{indent}{name}: {item}")
            else:
                lines.append(f"{indent}{name}: {json.dumps(item)}")
    return "\n".join(lines)


def signature(name: str, compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The signature of a compiled callable.

    Each distinct size of the inputs is changed once, in all places that have it: a call that succeeds shows that it may
    vary, and which sizes of the results vary with it. Sizes that vary independently need different values.

    Args:
        args, kwargs: of an example call; other sizes take their values again from the beginning.

    Raises:
        InputError: an argument, or a result, is not a tensor of a dtype that the protocol has, or the call has several graphs.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))

    def call(values: Sequence[Any]) -> list[torch.Tensor]:
        positional, keywords = pytree.tree_unflatten(list(values), structure)
        with torch.no_grad():
            result = compiled(*positional, **keywords)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    outputs = call(leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or not outputs:
        raise InputError(f"{name} takes {len(tensors)} tensors and gives {len(outputs)}: a server needs both")
    names = _names(compiled, len(tensors))
    varying_inputs: set[tuple[int, int]] = set()
    varying_outputs: set[tuple[int, int]] = set()
    for size in sorted({size for tensor in tensors for size in tensor.shape if size > 0}):
        try:
            others = call([_with_size(leaf, size, size + 1) for leaf in leaves])
        except Exception:  # any error means that the model does not take such sizes
            continue
        varying_inputs |= {
            (i, d) for i, tensor in enumerate(tensors) for d, n in enumerate(tensor.shape) if n == size
        }
        for i, (before, after) in enumerate(zip(outputs, others, strict=False)):
            pairs = enumerate(zip(before.shape, after.shape, strict=False))
            varying_outputs |= {(i, d) for d, (m, n) in pairs if m != n}
    return Signature(
        name,
        tuple(_described(names[i], t, varying_inputs, i) for i, t in enumerate(tensors)),
        tuple(_described(f"OUTPUT{i}", output, varying_outputs, i) for i, output in enumerate(outputs)),
        all((i, 0) in varying_inputs for i in range(len(tensors)))
        and all((i, 0) in varying_outputs for i in range(len(outputs)))
        and _rows_are_independent(call, leaves, outputs),
    )


def _names(compiled: Any, count: int) -> list[str]:
    """Names of the tensors that a call takes, as the model's archive names them."""
    graphs = inspectable(compiled).graphs()
    found = [[name for name in graph.inputs if name] for graph in graphs]
    if len(found) != 1 or len(found[0]) != count:
        raise InputError(
            f"{len(found)} graphs take {sum(map(len, found))} inputs, the call gives {count} tensors",
            fix="a server needs one graph that reads every tensor: see `staticrt inspect MODEL`",
        )
    return found[0]


def _described(name: str, tensor: torch.Tensor, varying: set[tuple[int, int]], index: int) -> TensorSignature:
    if tensor.dtype not in DATATYPES:
        raise InputError(f"{name} is {tensor.dtype}, which the protocol does not have")
    shape = tuple(-1 if (index, d) in varying else size for d, size in enumerate(tensor.shape))
    return TensorSignature(name, DATATYPES[tensor.dtype], shape)


def _with_size(leaf: Any, size: int, other: int) -> Any:
    """A tensor with every dimension of one size changed to another; its values begin again where it grows."""
    if isinstance(leaf, torch.Tensor):
        for dim, present in enumerate(leaf.shape):
            if present == size:
                leaf = leaf.index_select(dim, torch.arange(other) % size)
    return leaf


def _rows_are_independent(call: Any, leaves: Sequence[Any], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the first rows alone give the first rows of the results."""
    rows = next(leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor))
    least = max(1, rows - 1)
    first = [leaf[:least] if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    twice = [
        leaf.repeat(2, *[1] * (leaf.dim() - 1)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    try:
        pairs = [*zip(call(first), [o[:least] for o in outputs], strict=True)]
        pairs += zip([o[:rows] for o in call(twice)], outputs, strict=True)
        for got, expected in pairs:
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    except Exception:  # sizes that the model does not take, or other values
        return False
    return True
