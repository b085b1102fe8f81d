"""The one place that loads the C++ extension.

A build fits exactly one torch: its version is compared before the extension is loaded, because a
mismatch would otherwise end in an undefined symbol or in a crash.
"""

from __future__ import annotations

import torch

from staticrt.errors import InternalError

try:
    from staticrt import _build_info
except ImportError as error:
    raise InternalError(
        "staticrt's C++ extension is not built",
        fix="run `make test` or `pip install --no-build-isolation -e .` in the project's folder",
    ) from error

if torch.__version__ != _build_info.TORCH_VERSION:
    raise InternalError(
        f"staticrt was built for torch {_build_info.TORCH_VERSION}, but torch {torch.__version__} is installed",
        fix="rebuild: pip install --no-build-isolation --force-reinstall --no-deps -e .",
    )

from staticrt import _C

__all__ = ["_C"]
