"""Ops that draw from a generator. The schema's tag says so; here are their costs and idle cases."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op

DRAWS = [
    "bernoulli",
    "binomial",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "normal_functional",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "uniform",
    "_sample_dirichlet",
    "_standard_gamma",
    "rrelu_with_noise_functional",
]
# In eval mode they return their input itself.
DROPOUTS = ["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"]

for _name in DRAWS:
    register_op(f"aten.{_name}", family="random", cost=Cost.MEMORY)
for _name in DROPOUTS:
    register_op(
        f"aten.{_name}",
        family="random",
        may_alias=("input",),
        idle_when={"train": False, "p": 0.0},
        cost=Cost.MEMORY,
    )
register_op("aten.native_dropout", family="random", idle_when={"train": False}, cost=Cost.MEMORY)
register_op("aten.native_dropout_backward", family="random", cost=Cost.POINTWISE)
register_op("aten.rrelu", family="random", idle_when={"training": False}, cost=Cost.POINTWISE)
register_op("aten.rrelu_with_noise", family="random", cost=Cost.POINTWISE)
