"""How much work a node is: floating-point operations and bytes, from the shapes it ran on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ITEM_BYTES = {
    "Byte": 1, "Char": 1, "Short": 2, "Int": 4, "Long": 8, "Half": 2, "Float": 4, "Double": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "Bool": 1, "BFloat16": 2,
    "QInt8": 1, "QUInt8": 1, "QInt32": 4, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Shape:
    """A tensor's dtype (as C++ names it), sizes and strides in elements."""

    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of its elements; of an expanded tensor (stride 0) only those that exist."""
        sizes = self.sizes
        if self.strides and self.numel:
            sizes = tuple(n for n, step in zip(self.sizes, self.strides, strict=True) if step != 0)
        return math.prod(sizes) * ITEM_BYTES.get(self.dtype, 1)

    def __str__(self) -> str:
        return f"{NAMES.get(self.dtype, self.dtype.lower())}[{', '.join(map(str, self.sizes))}]"


NAMES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "Float": "float32", "Double": "float64", "Bool": "bool", "BFloat16": "bfloat16",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip

Shapes = Sequence[Shape]
Constants = Mapping[int, Any]


def _mm(reads: Shapes, writes: Shapes, _: Constants) -> int:
    return 2 * writes[0].numel * reads[0].sizes[-1]


def _addmm(reads: Shapes, writes: Shapes, _: Constants) -> int:
    return 2 * writes[0].numel * reads[1].sizes[-1] + writes[0].numel


def _linear(reads: Shapes, writes: Shapes, _: Constants) -> int:
    products = 2 * writes[0].numel * reads[1].sizes[-1]
    return products + (writes[0].numel if len(reads) > 2 else 0)


def _convolution(reads: Shapes, writes: Shapes, constants: Constants) -> int:
    """aten.convolution: argument 6 says whether it is transposed; argument 8 is the number of groups."""
    return _conv(reads, writes, bool(constants.get(6, False)))


def _conv(reads: Shapes, writes: Shapes, transposed: bool = False) -> int:
    weight = reads[1]
    per_element = math.prod(weight.sizes[1:])  # [out, in / groups, …], transposed [in, out / groups, …]
    elements = reads[0].numel if transposed else writes[0].numel
    bias = writes[0].numel if len(reads) > 2 else 0
    return 2 * elements * per_element + bias


def _attention(reads: Shapes, writes: Shapes, _: Constants) -> int:
    """q [..., L, E], k [..., S, E], v [..., S, Ev]: two products and a softmax (five per score)."""
    q, k, v = reads[0], reads[1], reads[2]
    scores = math.prod(q.sizes[:-1]) * k.sizes[-2]
    return scores * (2 * q.sizes[-1] + 2 * v.sizes[-1] + 5)


def _lstm(reads: Shapes, writes: Shapes, constants: Constants) -> int:
    """All weight matrices [gates * hidden, features], once for each position."""
    x = reads[0]
    positions = math.prod(x.sizes[:-1])
    return sum(2 * positions * w.numel for w in reads[1:] if len(w.sizes) == 2)


def _per_read(factor: int) -> Callable[[Shapes, Shapes, Constants], int]:
    return lambda reads, writes, _: factor * (reads[0].numel if reads else 0)


_COUNTS: dict[str, Callable[[Shapes, Shapes, Constants], int]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul"), _mm),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"), _addmm),
    **dict.fromkeys(("linear", "mkldnn_linear", "_linear_pointwise"), _linear),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **{f"conv{d}d": lambda r, w, _: _conv(r, w) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": lambda r, w, _: _conv(r, w, True) for d in (1, 2, 3)},
    "_convolution_pointwise": lambda r, w, _: _conv(r, w),
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _lstm),
    # Operations per element that they read; more than one pass over it.
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"), _per_read(5)),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "group_norm", "native_group_norm"), _per_read(8)),
    **dict.fromkeys(("rms_norm", "_fused_rms_norm"), _per_read(4)),
    **dict.fromkeys(
        ("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training"), _per_read(2)
    ),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod", "max", "min", "argmax", "argmin"), _per_read(1)),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _per_read(3)),
}

# They move bytes and compute nothing.
_MOVES = frozenset([
    "cat", "stack", "clone", "copy", "copy_", "contiguous", "_to_copy", "embedding", "gather", "index",
    "index_select", "slice_scatter", "select_scatter", "scatter", "where", "pad", "constant_pad_nd", "repeat",
    "expand", "view", "reshape", "permute", "transpose", "t", "slice", "select", "unsqueeze", "squeeze",
    "split", "chunk", "unbind", "narrow", "flatten", "flip", "roll", "fill", "zeros", "ones", "full", "empty",
    "zeros_like", "ones_like", "full_like", "empty_like", "arange", "to", "detach", "alias",
    "lift_fresh_copy", "masked_fill",
])  # fmt: skip

# They read only rows of their first tensor: as much of it as they write.
_ROW_READERS = frozenset(("embedding", "index_select", "gather", "embedding_bag", "_embedding_bag", "index"))


def short_name(op: str) -> str:
    """ "aten::add.Tensor" as "add"."""
    return op.split("::")[-1].split(".")[0]


def flops(op: str, reads: Shapes, writes: Shapes, constants: Constants) -> int:
    """Floating-point operations, a multiply-add as two.

    Products, convolutions, attention and recurrent layers are counted by formula; reductions and norms by a
    fixed number per element read; pointwise operators one per element written; moves none.
    """
    name = short_name(op)
    if not writes or name in _MOVES or not op.startswith("aten::"):
        return 0
    count = _COUNTS.get(name)
    try:
        return count(reads, writes, constants) if count else sum(w.numel for w in writes)
    except (IndexError, KeyError):  # an overload of another form
        return 0


def moved_bytes(op: str, reads: Shapes, writes: Shapes) -> tuple[int, int]:
    """Bytes a node reads and writes when nothing is in a cache."""
    written = sum(shape.bytes for shape in writes)
    if short_name(op) in _ROW_READERS and reads:
        return min(reads[0].bytes, written) + sum(shape.bytes for shape in reads[1:]), written
    return sum(shape.bytes for shape in reads), written
