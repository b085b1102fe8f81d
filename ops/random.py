"""Ops that draw from a generator. The schema's tag says so; here are their costs and idle cases."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_op, register_ops

register_ops(
    "random",
    """
    bernoulli binomial cauchy exponential geometric log_normal multinomial normal normal_functional
    poisson rand rand_like randint randint_like randn randn_like random randperm uniform _sample_dirichlet
    _standard_gamma rrelu_with_noise_functional
    """,
    cost=Cost.MEMORY,
)
# In eval mode dropout returns its input itself.
register_ops(
    "random",
    """
    dropout alpha_dropout feature_dropout feature_alpha_dropout
    """,
    may_alias=("input",),
    idle_when={"train": False, "p": 0.0},
    cost=Cost.MEMORY,
)
register_op("aten.native_dropout", family="random", idle_when={"train": False}, cost=Cost.MEMORY)
register_op("aten.rrelu", family="random", idle_when={"training": False}, cost=Cost.POINTWISE)
register_ops("random", "native_dropout_backward rrelu_with_noise", cost=Cost.POINTWISE)
