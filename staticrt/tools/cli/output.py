"""What a command prints as JSON: one valid document, whatever the model prints meanwhile."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from typing import Any, TextIO

_real: list[TextIO] = []  # the stdout that JSON goes to while sys.stdout is stderr


@contextlib.contextmanager
def json_only() -> Iterator[None]:
    """Send what is printed meanwhile to stderr; only `print_json` writes to stdout."""
    _real.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _real.pop()


def print_json(document: Any, indent: int | None = None) -> None:
    """Print one document. Numbers that JSON has no form for become strings: "nan", "inf", "-inf"."""
    text = json.dumps(_finite(document), allow_nan=False, indent=indent)
    print(text, file=_real[-1] if _real else sys.stdout, flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
