"""The ONNX form of `scaled_dot_product_attention`.

torch's exporter writes a mask as its type's lowest number, or as -inf: a row that the mask hides everywhere is then
the mean of all values, or NaN. torch returns 0, and so does this form. It also takes tensors that are not of rank 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attention(opset: int) -> Callable[..., Any]:
    """The translation of `aten.scaled_dot_product_attention.default` for an operator set, 18 or later.

    From operator set 23 on it is the operator Attention where the tensors have rank 4, except with masks that are added:
    ONNX Runtime takes the lowest number in one for -inf, and torch does not.
    """
    import onnxscript
    from onnx_ir import DataType, tensor

    ops: Any = onnxscript.opset18  # its type hints exclude traced values

    def constant(value: float, like: Any) -> Any:
        return ops.Constant(value=tensor(value, dtype=like.dtype))

    def size(value: Any, axis: int) -> Any:
        rank = len(value.shape)
        return ops.Shape(value, start=rank + axis, end=rank + axis + 1)

    def causal(query: Any, key: Any) -> Any:
        """An additive mask [rows, keys]: row i attends to keys 0 to i."""
        shape = ops.Concat(size(query, -2), size(key, -2), axis=0)
        ones = ops.Expand(ops.Constant(value=tensor(1, dtype=DataType.INT64)), shape)
        return shown(ops.Cast(ops.Trilu(ones, upper=0), to=DataType.BOOL), query)

    def shown(mask: Any, like: Any) -> Any:
        """A boolean mask as an additive one."""
        return ops.Where(mask, constant(0.0, like), constant(like.dtype.min, like))

    def repeated(value: Any, times: int) -> Any:
        """[..., heads, keys, depth] with each head `times` times in a row."""
        axis = ops.Constant(value_ints=[len(value.shape) - 2])
        rank = len(value.shape)
        before, after = ops.Shape(value, end=rank - 2), ops.Shape(value, start=rank - 2)
        wide = ops.Expand(
            ops.Unsqueeze(value, axis),
            ops.Concat(before, ops.Constant(value_ints=[int(times)]), after, axis=0),
        )
        heads = ops.Constant(value_ints=[int(value.shape[rank - 3] * times)])
        return ops.Reshape(
            wide, ops.Concat(ops.Shape(value, end=rank - 3), heads, after, axis=0), allowzero=1
        )

    def written_out(
        query: Any, key: Any, value: Any, mask: Any, dropout: float, scale: float | None, gqa: bool
    ) -> Any:
        if gqa:
            key, value = (
                part
                if part.shape[-3] == query.shape[-3]
                else repeated(part, query.shape[-3] // part.shape[-3])
                for part in (key, value)
            )
        rank = len(query.shape)
        turned = ops.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
        if (
            scale is None
        ):  # scale both factors by the root, as torch does, so that half-precision scores stay finite
            depth = ops.CastLike(size(query, -1), query)
            root = ops.Reciprocal(ops.Sqrt(ops.Sqrt(depth)))
            scores = ops.MatMul(ops.Mul(query, root), ops.Mul(turned, root))
        elif scale > 0:
            root = constant(scale**0.5, query)
            scores = ops.MatMul(ops.Mul(query, root), ops.Mul(turned, root))
        else:
            scores = ops.Mul(ops.MatMul(query, turned), constant(scale, query))
        if mask is not None:
            scores = ops.Add(scores, mask)
        weights = ops.Softmax(scores, axis=-1)
        if dropout:
            weights, _ = ops.Dropout(weights, dropout)
        return ops.MatMul(weights, value)

    def hidden_rows(mask: Any, like: Any) -> Any:
        """bool [..., rows, 1]: which rows attend to no key."""
        last = ops.Constant(value_ints=[-1])
        if mask.dtype == DataType.BOOL:
            most = ops.ReduceMax(ops.Cast(mask, to=DataType.INT32), last)
            return ops.Equal(most, ops.Constant(value=tensor(0, dtype=DataType.INT32)))
        return ops.Equal(ops.ReduceMax(mask, last), constant(float("-inf"), like))

    def translate(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        rank_4 = len(query.shape) == len(key.shape) == len(value.shape) == 4
        added = attn_mask is not None and attn_mask.dtype != DataType.BOOL
        if opset >= 23 and rank_4 and not dropout_p and not added:
            found, *_ = onnxscript.opset23.Attention(
                query, key, value, attn_mask, scale=scale, is_causal=int(is_causal)
            )
        else:
            mask = causal(query, key) if is_causal else attn_mask
            if attn_mask is not None and not added:
                mask = shown(attn_mask, query)
            found = written_out(query, key, value, mask, dropout_p, scale, enable_gqa)
        if attn_mask is None:
            return found
        return ops.Where(hidden_rows(attn_mask, query), constant(0.0, query), found)

    return translate
