"""Copies: joining, padding, repeating, reordering, casting; functional forms of views and writes."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "copy",
    """
    cat.default concat.default concatenate.default stack repeat repeat_interleave tile flip fliplr flipud
    roll rot90 tril triu diag diag_embed diagflat constant_pad_nd reflection_pad1d reflection_pad2d
    reflection_pad3d replication_pad1d replication_pad2d replication_pad3d _pad_circular pixel_shuffle
    pixel_unshuffle channel_shuffle native_channel_shuffle column_stack hstack vstack dstack row_stack
    _stack pad_sequence _chunk_cat fft_fftshift fft_ifftshift narrow_copy copy set resize resize_as
    _resize_output lift_fresh_copy _to_cpu unfold_backward reflection_pad1d_backward
    reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
    replication_pad2d_backward replication_pad3d_backward trace_backward diagonal_backward expand_copy
    permute_copy view_copy _reshape_copy as_strided_copy t_copy transpose_copy squeeze_copy unsqueeze_copy
    select_copy slice_copy split_copy split_with_sizes_copy unbind_copy alias_copy detach_copy
    diagonal_copy unfold_copy view_as_real_copy view_as_complex_copy _conj_copy _neg_view_copy
    """,
    cost=Cost.MEMORY,
)
register_ops("copy", "clone _to_copy fill zero", cost=Cost.MEMORY, fusable=True)
# A pad of nothing may return the input itself.
register_ops("copy", "pad _pad_enum", may_alias=("self",), cost=Cost.MEMORY)
# In-place ops that have no functional twin.
register_ops("copy", "copy_ set_ resize_ resize_as_ detach_", cost=Cost.MEMORY)
