"""What Python does with a warning of torch: a graph warns of nothing, and a place that warned once stays silent by default."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

_OF_TORCH = (UserWarning, FutureWarning)


def warns_each_time() -> bool:
    """Whether a warning of torch may be shown, or raised, each time that it is issued."""
    return any(action in ("always", "all", "error") for action, _which in _relevant())


def filters() -> str:
    """The filters that such a warning meets, as text."""
    return str([*_relevant()])


def _relevant() -> Iterator[tuple[str, object]]:
    for kind in _OF_TORCH:
        for action, text, category, module, line in warnings.filters:
            if issubclass(kind, category):
                yield action, (text, module, line)
                if text is module is None and not line:
                    break
        else:
            yield warnings.defaultaction, kind  # type: ignore[attr-defined]
