"""Options as users give them, checked completely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from staticrt.errors import OptionError
from staticrt.options import Options, parse_options


def checked_options(given: Mapping[str, Any]) -> Options:
    """`staticrt.options.parse_options`, and the checks of values that other parts of the package define.

    Raises:
        OptionError: an unknown option, a value the option does not take, or no accelerator of that name.
    """
    parsed = parse_options(given)
    if not isinstance(parsed.graphs, bool):
        from staticrt.graphs.context import GraphContext

        if not isinstance(parsed.graphs, GraphContext):
            raise OptionError(
                f"option 'graphs' takes True, False or a staticrt.graphs.GraphContext, got {parsed.graphs!r} "
                f"({type(parsed.graphs).__name__})",
                fix="graphs=True",
            )
    if parsed.accelerators is not None:
        from staticrt.api.accelerators import check_name

        check_name(parsed.accelerators)
    return parsed
