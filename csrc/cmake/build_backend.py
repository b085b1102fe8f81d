"""The build backend: scikit-build-core, with the torch that is already installed.

pip builds in an environment of its own, which does not see the packages of the one that it installs into. A build fits one
release of torch, so it takes the installed torch; only where there is none does it require one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
_Settings = dict[str, Any] | None


def _installed_torch() -> Path | None:
    """The folder of torch: as imports find it, else in the environment behind pip's own."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]).resolve()
    for prefix in (sys.prefix, sys.base_prefix):
        folder = Path(sysconfig.get_path("platlib", vars={"base": prefix, "platbase": prefix})) / "torch"
        if (folder / "version.py").exists():
            return folder.resolve()
    return None


def _required_torch() -> list[str]:
    if _installed_torch():
        return []
    dependencies = re.search(
        r"^dependencies = .*$", Path("pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    return re.findall(r'"(torch>=[^"]+)"', dependencies.group()) if dependencies else []


def _settings(given: _Settings) -> dict[str, Any]:
    settings = dict(given or {})
    if (torch := _installed_torch()) is not None:
        settings.setdefault("cmake.define.STATICRT_TORCH_DIR", str(torch))
    if not os.access(".", os.W_OK):  # else build/, which is kept
        settings.setdefault("build-dir", tempfile.mkdtemp(prefix="staticrt-build-"))
    return settings


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    return [*backend.get_requires_for_build_wheel(config_settings), *_required_torch()]


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    return [*backend.get_requires_for_build_editable(config_settings), *_required_torch()]


def build_wheel(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    return backend.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    return backend.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
