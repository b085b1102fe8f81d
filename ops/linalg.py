"""Decompositions, solvers and inverses."""

from __future__ import annotations

from staticrt.ops.registry import register_ops

register_ops(
    "linalg",
    """
    inverse pinverse det logdet slogdet _linalg_det _linalg_slogdet cholesky cholesky_inverse
    cholesky_solve _cholesky_solve_helper triangular_solve lu_solve lu_unpack _lu_with_info qr geqrf orgqr
    ormqr svd _linalg_svd _linalg_eigh _linalg_eigvals _linalg_solve_ex linalg_cholesky linalg_cholesky_ex
    linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    """,
)
