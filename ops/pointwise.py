"""Elementwise arithmetic, comparisons, bits and special functions."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.out_rules import Broadcast, OutRule, SameAs
from staticrt.ops.registry import register_op

# One tensor in, element by element. The dtype kind says what an integer input gives.
KEEP = [
    "abs",
    "absolute",
    "ceil",
    "floor",
    "trunc",
    "fix",
    "round",
    "sgn",
    "sign",
    "neg",
    "negative",
    "bitwise_not",
    "square",
    "frac",
    "_conj_physical",
]
TO_FLOAT = [
    "acos",
    "arccos",
    "acosh",
    "arccosh",
    "asin",
    "arcsin",
    "asinh",
    "arcsinh",
    "atan",
    "arctan",
    "atanh",
    "arctanh",
    "cos",
    "cosh",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "deg2rad",
    "rad2deg",
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "i0",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logit",
    "reciprocal",
    "rsqrt",
    "sqrt",
    "sinc",
    "special_digamma",
    "special_entr",
    "special_erf",
    "special_erfc",
    "special_erfcx",
    "special_erfinv",
    "special_exp2",
    "special_expm1",
    "special_gammaln",
    "special_i0",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_log1p",
    "special_log_ndtr",
    "special_logit",
    "special_ndtr",
    "special_ndtri",
    "special_psi",
    "special_sinc",
    "special_airy_ai",
    "special_bessel_j0",
    "special_bessel_j1",
    "special_bessel_y0",
    "special_bessel_y1",
    "special_modified_bessel_i0",
    "special_modified_bessel_i1",
    "special_modified_bessel_k0",
    "special_modified_bessel_k1",
    "special_scaled_modified_bessel_k0",
    "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0",
]
NAMED_X = [
    "special_airy_ai",
    "special_scaled_modified_bessel_k0",
    "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0",
]
TO_BOOL = ["isinf", "isnan", "isfinite", "isneginf", "isposinf", "logical_not", "signbit", "isreal"]
# Composite ops that compute their result in several steps: never in place of their input.
COMPOSITE = [
    "mvlgamma",
    "special_multigammaln",
    "special_polygamma",
    "special_round",
    "true_divide",
    "divide",
    "float_power",
    "isclose",
    "ldexp",
]

BINARY = [
    "add",
    "sub",
    "mul",
    "rsub",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "remainder",
    "fmod",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "gcd",
    "lcm",
    "copysign",
    "hypot",
    "nextafter",
    "logaddexp",
    "logaddexp2",
    "heaviside",
    "igamma",
    "igammac",
    "pow",
    "floor_divide",
    "special_gammainc",
    "special_gammaincc",
    "__lshift__",
    "__rshift__",
    "__and__",
    "__or__",
    "__xor__",
    "subtract",
    "multiply",
    "arctan2",
    "atan2",
    "xlogy",
    "special_xlogy",
    "special_xlog1py",
    "special_zeta",
    "div",
    "special_chebyshev_polynomial_t",
    "special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_v",
    "special_chebyshev_polynomial_w",
    "special_hermite_polynomial_h",
    "special_hermite_polynomial_he",
    "special_laguerre_polynomial_l",
    "special_legendre_polynomial_p",
    "special_shifted_chebyshev_polynomial_t",
    "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_v",
    "special_shifted_chebyshev_polynomial_w",
]
_BINARY_TO_FLOAT = {
    "atan2",
    "arctan2",
    "copysign",
    "xlogy",
    "special_xlogy",
    "special_xlog1py",
    "special_zeta",
} | {name for name in BINARY if "polynomial" in name}
COMPARE = [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
]
# What the tile loops of the prepared runtime can run beside their neighbours (design/runtime.md §2).
NOT_FUSABLE = {"frexp", "gcd", "lcm", "mvlgamma"}


def _unary(names: list[str], dtype: str) -> None:
    for name in names:
        arg = "x" if name in NAMED_X else "self"
        register_op(
            f"aten.{name}",
            family="pointwise",
            # A complex abs has another dtype than this rule can tell.
            out=None if name in ("abs", "absolute") else SameAs(arg, dtype=dtype),
            can_reuse=(arg,),
            cost=Cost.POINTWISE,
            fusable=True,
        )


def _many(names: list[str], args: tuple[str, ...], out: OutRule | None, fusable: bool = True) -> None:
    for name in names:
        register_op(
            f"aten.{name}",
            family="pointwise",
            out=out,
            can_reuse=args,
            cost=Cost.POINTWISE,
            fusable=fusable and name not in NOT_FUSABLE,
        )


_unary(KEEP, "same")
_unary(TO_FLOAT, "float")
_unary(TO_BOOL, "bool")
for _name in BINARY:
    _pair = ("self", "other")
    if _name == "pow":
        _pair = ("self", "exponent")
    elif _name.startswith("special_") and ("polynomial" in _name):
        _pair = ("x", "n")
    elif _name == "heaviside":
        _pair = ("self", "values")
    _kind = "float" if _name in _BINARY_TO_FLOAT else "promote"
    # div and floor_divide: the rounding mode decides the dtype, so a fake tensor answers.
    _many([_name], _pair, None if _name in ("div", "rsub") else Broadcast(_pair, _kind))
_many(COMPARE, ("self", "other"), Broadcast(("self", "other"), "bool"))
for _name in COMPOSITE:
    register_op(f"aten.{_name}", family="pointwise", cost=Cost.POINTWISE)

_many(["angle", "frexp", "nan_to_num", "polygamma"], ("self",), None)
register_op(
    "aten._add_relu", family="pointwise", can_reuse=("self", "other"), cost=Cost.POINTWISE, fusable=True
)
_many(["addcmul", "addcdiv"], ("self", "tensor1", "tensor2"), Broadcast(("self", "tensor1", "tensor2")))
_many(["lerp"], ("self", "end"), None)
_many(["clamp", "clip"], ("self", "min", "max"), None)
_many(["clamp_min"], ("self", "min"), None)
_many(["clamp_max"], ("self", "max"), None)
# `condition` serves only where the values are bool too: the element sizes must agree.
_many(["where"], ("condition", "self", "other"), None)
register_op("aten.where.default", family="pointwise", cost=Cost.OTHER)  # indices of non-zero elements
_many(["complex"], ("real", "imag"), None, fusable=False)
_many(["polar"], ("abs", "angle"), None, fusable=False)
_many(["masked_fill"], ("self",), None)
# A real input is returned itself.
register_op(
    "aten.conj_physical", family="pointwise", may_alias=("self",), out=SameAs("self"), cost=Cost.POINTWISE
)
register_op("aten.equal", family="pointwise", cost=Cost.REDUCTION)
register_op("aten.allclose", family="pointwise", cost=Cost.REDUCTION)
