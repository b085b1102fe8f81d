"""Calls a model from a command: without gradients, and with errors of the model reported as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staticrt.errors import StaticRuntimeError
from staticrt.frontend.arguments.names import leaf_paths
from staticrt.frontend.progress import long_work
from staticrt.tools.cli.loading import model_error


def call(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function(*args, **kwargs)` without gradients. A call that takes long is shown as `what`.

    Raises:
        ModelError: the model raised.
    """
    try:
        with long_work(what), torch.no_grad():
            return function(*args, **kwargs)
    except StaticRuntimeError:
        raise
    except Exception as error:
        raise model_error(what, error) from error


def describe_result(value: Any) -> list[dict[str, Any]]:
    """One entry per leaf of a result: path, dtype and sizes; of tensors also the smallest, mean and largest value."""
    lines = []
    for path, leaf in leaf_paths(value):
        place = path or "result"
        if not isinstance(leaf, torch.Tensor):
            lines.append(
                {"name": place, "value": leaf if isinstance(leaf, (int, float, str, bool)) else repr(leaf)}
            )
            continue
        entry: dict[str, Any] = {
            "name": place,
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "sizes": list(leaf.shape),
        }
        if leaf.numel() and not leaf.is_complex():
            numbers = leaf.double()
            finite = torch.isfinite(numbers)
            entry["finite"] = bool(finite.all())
            for name, figure in (("min", numbers.min()), ("mean", numbers.mean()), ("max", numbers.max())):
                entry[name] = figure.item() if entry["finite"] else None
        lines.append(entry)
    return lines
