"""Fake rules: fast fake results for frequent operators.

torch's rules are general and slow with symbolic sizes (milliseconds for `layer_norm`), and some specialise sizes that the
operator does not depend on (oneDNN heuristics of `convolution`, broadcasting in `matmul`). Each rule here covers the
common case and returns `None` for all others, which torch's rules then handle, errors included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from staticrt.shapes.fake_results import RULES, Rule, Unknown
from staticrt.shapes.rules import (  # importing a family registers its rules
    convolutions,  # noqa: F401
    ctc,  # noqa: F401
    factories,  # noqa: F401
    gradients,  # noqa: F401
    images,  # noqa: F401
    indexing,  # noqa: F401
    joins,  # noqa: F401
    layers,  # noqa: F401
    lookups,  # noqa: F401
    losses,  # noqa: F401
    pointwise,  # noqa: F401
    products,  # noqa: F401
    quantized,  # noqa: F401
    reductions,  # noqa: F401
    reshapes,  # noqa: F401
    sorts,  # noqa: F401
    spectral,  # noqa: F401
    views,  # noqa: F401
    windows,  # noqa: F401
)
from staticrt.shapes.rules.pointwise import pointwise_rule


def fake_by_rule(mode: Any, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What `op` returns for fake arguments, if a rule covers them; else None.

    Args:
        mode: the FakeTensorMode of the result, not entered.

    Raises:
        RuntimeError: the arguments do not fit together.
    """
    found = rule_of(op)
    try:
        return None if found is None else found(mode, *args, **kwargs)
    except Unknown:
        return None


def rule_of(op: Any) -> Rule | None:
    """The rule of an operator; None: it has none."""
    if op not in RULES:
        RULES[op] = pointwise_rule(op)
    return RULES[op]
