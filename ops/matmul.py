"""Products of matrices and vectors."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "matmul",
    """
    mm bmm mv matmul linalg_matmul linear addmm addmv addr addbmm baddbmm _addmm_activation dot vdot inner
    outer ger kron tensordot chain_matmul linalg_vecdot linalg_matrix_power matrix_power matrix_exp
    linalg_matrix_exp cross linalg_cross linalg_vander vander _trilinear bilinear _int_mm _scaled_mm
    _grouped_mm _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    _compute_linear_combination linear_backward
    """,
    cost=Cost.GEMM,
)
# A product of one matrix returns that matrix; an equation without a sum permutes its operand.
register_ops("matmul", "linalg_multi_dot einsum", may_alias=("tensors",), cost=Cost.GEMM)
