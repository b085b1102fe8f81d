"""The one place that loads the C++ extension.

A build fits the release of torch that it was made with: the version is compared before the extension is loaded, because
a mismatch would otherwise end in an undefined symbol or in a crash.
"""

from __future__ import annotations

from pathlib import Path

import torch

from staticrt.errors import InternalError

try:
    from staticrt import _build_info
except ImportError as error:
    raise InternalError(
        "staticrt's C++ extension is not built",
        fix="run `make test` or `pip install --no-build-isolation -e .` in the project's folder",
    ) from error


def binary_release(version: str) -> str:
    """What builds have in common that fit each other.

    Patch releases, and builds for CPU and for CUDA, of one release of torch have the same headers and symbols; those of
    a development version change from day to day.

    Args:
        version: a version of torch, as "2.13.0+cpu".

    Returns:
        "2.13" of it; the whole version for a development version.
    """
    numbers = version.split("+")[0].split(".")
    return ".".join(numbers[:2]) if all(number.isdigit() for number in numbers) else version


def _mismatch() -> InternalError:
    here, installed = Path(__file__).parent, Path(str(_build_info.__file__)).parent
    rebuild = "pip install --no-build-isolation --no-deps --force-reinstall"
    if here == installed:
        fix = f"rebuild in staticrt's source folder: {rebuild} ."
    else:  # an editable install
        fix = f"rebuild: {rebuild} -e '{here.parent}'"
    return InternalError(
        f"staticrt was built for torch {_build_info.TORCH_VERSION}, but torch {torch.__version__} is installed",
        fix=fix,
    )


if binary_release(torch.__version__) != binary_release(_build_info.TORCH_VERSION):
    raise _mismatch()

try:
    from staticrt import _C
except ImportError as error:  # a torch built by hand, with other symbols
    raise _mismatch() from error

__all__ = ["_C", "binary_release"]
