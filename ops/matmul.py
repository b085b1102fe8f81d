"""Products of matrices and vectors."""

from __future__ import annotations

from staticrt.ops.facts import ACCUMULATED, Cost
from staticrt.ops.out_rules import LinearOut, MatMul, OutRule
from staticrt.ops.registry import register_op

OTHERS = [
    "addmm",
    "addmv",
    "addr",
    "addbmm",
    "baddbmm",
    "_addmm_activation",
    "dot",
    "vdot",
    "inner",
    "outer",
    "ger",
    "kron",
    "tensordot",
    "chain_matmul",
    "linalg_vecdot",
    "linalg_matrix_power",
    "matrix_power",
    "matrix_exp",
    "linalg_matrix_exp",
    "cross",
    "linalg_cross",
    "linalg_vander",
    "vander",
    "_trilinear",
    "bilinear",
    "_int_mm",
    "_scaled_mm",
    "_grouped_mm",
    "_weight_int8pack_mm",
    "_weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu",
    "_compute_linear_combination",
    "linear_backward",
]


def _product(name: str, out: OutRule | None, may_alias: tuple[str, ...] = ()) -> None:
    register_op(
        f"aten.{name}",
        family="matmul",
        out=out,
        may_alias=may_alias,
        cost=Cost.GEMM,
        tolerance=ACCUMULATED,
    )


for _name in OTHERS:
    _product(_name, None)
_product("mm", MatMul())
_product("bmm", MatMul())
_product("mv", MatMul(right="vec"))
_product("matmul", MatMul(right="other"))
_product("linalg_matmul", MatMul(right="other"))
_product("linear", LinearOut())
# One matrix is returned itself; an equation without a sum is a permutation of its operand.
_product("linalg_multi_dot", None, may_alias=("tensors",))
_product("einsum", None, may_alias=("tensors",))
