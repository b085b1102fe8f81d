"""Operators with one of our kernels that no sample of torch's operator database reaches equal eager's."""

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import staticrt

aten = torch.ops.aten


def floats(*shape):
    return torch.randn(shape)


def bytes_(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


IMAGE, VOLUME = (1, 2, 8, 8), (1, 2, 4, 8, 8)
CASES = [
    (aten._int_mm.default, bytes_(32, 64), bytes_(64, 32)),
    (aten._int_mm.default, bytes_(17, 5), bytes_(3, 5).t()),
    (aten._int_mm.default, bytes_(0, 8), bytes_(8, 3)),
    (aten._add_relu.Tensor, floats(3, 4), floats(3, 4)),
    (aten._addmm_activation.default, floats(5), floats(3, 4), floats(4, 5)),
    (aten._convert_indices_from_coo_to_csr.default, torch.tensor([0, 1, 1, 3]), 5),
    (aten._convert_indices_from_csr_to_coo.default, torch.tensor([0, 1, 3, 4]), torch.tensor([0, 1, 1, 2])),
    (aten._fused_rms_norm.default, floats(3, 4), [4], floats(4), 1e-5),
    (aten._fused_rms_norm.default, floats(3, 4), [4], None, None),
    (aten._logcumsumexp.default, floats(3, 4), 1),
    (aten._neg_view.default, floats(3, 4)),
    (aten._reshape_copy.default, floats(3, 4), [4, 3]),
    (aten._upsample_bicubic2d_aa.default, floats(*IMAGE), [4, 5], False, None, None),
    (aten._upsample_bicubic2d_aa_backward.default, floats(1, 2, 4, 5), [4, 5], IMAGE, False, None, None),
    (aten._upsample_bilinear2d_aa_backward.default, floats(1, 2, 4, 5), [4, 5], IMAGE, False, None, None),
    (aten._upsample_nearest_exact1d_backward.default, floats(1, 2, 5), [5], [1, 2, 8], None),
    (aten._upsample_nearest_exact2d.default, floats(*IMAGE), [4, 5], None, None),
    (aten._upsample_nearest_exact2d_backward.default, floats(1, 2, 4, 5), [4, 5], IMAGE, None, None),
    (aten._upsample_nearest_exact3d.default, floats(*VOLUME), [2, 4, 5], None, None, None),
    (aten._upsample_nearest_exact3d_backward.default, floats(1, 2, 2, 4, 5), [2, 4, 5], VOLUME),
    (aten.upsample_nearest3d.default, floats(*VOLUME), [2, 4, 5], None, None, None),
    (aten.upsample_trilinear3d_backward.default, floats(1, 2, 2, 4, 5), [2, 4, 5], VOLUME, False),
    (aten.copy.default, floats(3, 4), floats(4)),
    (aten.detach_copy.default, floats(4, 3).t()),
    (aten.select_copy.int, floats(3, 4), 0, 1),
    (aten.slice_copy.Tensor, floats(3, 4), 0, 1, 3),
    (aten.reflection_pad1d_backward.default, floats(2, 3, 7), floats(2, 3, 4), [1, 2]),
    (aten.reflection_pad2d.default, floats(2, 3, 4, 5), [1, 2, 1, 0]),
    (aten.reflection_pad3d.default, floats(2, 3, 4, 5, 6), [1, 2, 1, 0, 1, 1]),
    (aten.replication_pad1d_backward.default, floats(2, 3, 7), floats(2, 3, 4), [1, 2]),
    (aten.replication_pad3d.default, floats(2, 3, 4, 5, 6), [1, 2, 1, 0, 1, 1]),
    (aten.slow_conv_transpose2d.default, floats(1, 3, 5, 5), floats(3, 4, 3, 3), [3, 3]),
    (aten._native_batch_norm_legit_no_training.default, floats(2, 3, 4), *[torch.rand(3)] * 4, 0.1, 1e-5),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, *[floats(2, 3, 5, 8)] * 3),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]).removeprefix("aten."))
def test_three_calls(case):
    op, *arguments = case
    leaves, structure = tree_flatten(tuple(arguments))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors):
        filled = list(leaves)
        for i, tensor in zip(where, tensors, strict=True):
            filled[i] = tensor
        return op(*tree_unflatten(filled, structure))

    tensors = [leaves[i] for i in where]
    compiled = staticrt.compile(function, fullgraph=True)
    with torch.no_grad():
        expected = function(*tensors)
        for _ in range(3):
            got = compiled(*tensors)
            torch.testing.assert_close(got, expected)
            for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
                assert not isinstance(a, torch.Tensor) or a.stride() == b.stride()


def test_sizes_that_do_not_fit_are_eagers_error():
    compiled = staticrt.compile(lambda a, b: aten._int_mm.default(a, b))
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"(?i)size|shape|mat"):
        compiled(bytes_(4, 5), bytes_(6, 3))
