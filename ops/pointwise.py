"""Elementwise arithmetic, comparisons, bits and special functions."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op, register_ops

# One loop over elements can compute each of these together with its neighbours.
register_ops(
    "pointwise",
    """
    abs absolute ceil floor trunc fix round sgn sign neg negative bitwise_not square frac _conj_physical
    acos arccos acosh arccosh asin arcsin asinh arcsinh atan arctan atanh arctanh cos cosh sin sinh tan
    tanh deg2rad rad2deg digamma erf erfc erfinv exp exp2 expm1 i0 lgamma log log10 log1p log2 logit
    reciprocal rsqrt sqrt sinc special_digamma special_entr special_erf special_erfc special_erfcx
    special_erfinv special_exp2 special_expm1 special_gammaln special_i0 special_i0e special_i1
    special_i1e special_log1p special_log_ndtr special_logit special_ndtr special_ndtri special_psi
    special_sinc special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_spherical_bessel_j0 isinf isnan isfinite isneginf isposinf logical_not signbit isreal
    """,
    cost=Cost.POINTWISE,
    fusable=True,
)
register_ops(
    "pointwise",
    """
    add sub mul rsub maximum minimum fmax fmin remainder fmod bitwise_and bitwise_or bitwise_xor
    bitwise_left_shift bitwise_right_shift copysign hypot nextafter logaddexp logaddexp2 heaviside igamma
    igammac pow floor_divide special_gammainc special_gammaincc __lshift__ __rshift__ __and__ __or__
    __xor__ subtract multiply arctan2 atan2 xlogy special_xlogy special_xlog1py special_zeta div
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
    special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w eq ne lt le gt ge logical_and logical_or logical_xor not_equal
    less less_equal greater greater_equal
    """,
    cost=Cost.POINTWISE,
    fusable=True,
)
register_ops(
    "pointwise",
    """
    angle nan_to_num polygamma _add_relu addcmul addcdiv lerp clamp clip clamp_min clamp_max where
    masked_fill
    """,
    cost=Cost.POINTWISE,
    fusable=True,
)
register_ops("pointwise", "frexp gcd lcm complex polar", cost=Cost.POINTWISE)
# Composite ops that compute their result in several steps.
register_ops(
    "pointwise",
    """
    mvlgamma special_multigammaln special_polygamma special_round true_divide divide float_power isclose
    ldexp
    """,
    cost=Cost.POINTWISE,
)
register_op("aten.where.default", family="pointwise")  # indices of non-zero elements
# A real input is returned itself.
register_op("aten.conj_physical", family="pointwise", may_alias=("self",), cost=Cost.POINTWISE)
register_ops("pointwise", "equal allclose", cost=Cost.REDUCTION)
