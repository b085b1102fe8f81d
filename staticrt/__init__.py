"""staticrt: a static runtime for PyTorch.

`staticrt.compile(module)` is where to begin. Everything is imported at first use, so that
`import staticrt` and `staticrt.errors` cost nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"
# public name -> module that defines it
_LAZY: dict[str, str] = {
    "CompiledFunction": "staticrt.api.compile",
    "CompiledModule": "staticrt.api.compile",
    "CompiledStep": "staticrt.training.step",
    "Future": "staticrt.runtime.asynchronous",
    "LoadedModel": "staticrt.archive.loaded",
    "compile": "staticrt.api.compile",
    "compile_step": "staticrt.api.step",
    "fork": "staticrt.runtime.asynchronous",
    "from_onnx": "staticrt.interop.onnx.load",
    "load": "staticrt.archive.loaded",
    "save": "staticrt.archive.writer",
    "set_num_async_threads": "staticrt.runtime.asynchronous",
    "to_onnx": "staticrt.interop.onnx.export",
    "wait": "staticrt.runtime.asynchronous",
}
# public name -> the module it stands for
_MODULES: dict[str, str] = {
    "accelerators": "staticrt.api.accelerators",
    "autotuning": "staticrt.runtime.autotuning",
    "errors": "staticrt.errors",
    "graphs": "staticrt.graphs",
    "memory": "staticrt.memory",
    "planner": "staticrt.memory.planner",
}

__all__ = sorted([*_LAZY, *_MODULES, "__version__", "cmake_prefix_path"])


def __getattr__(name: str) -> Any:
    if name == "cmake_prefix_path":  # for find_package(staticrt) in CMake
        info = importlib.import_module("staticrt._build_info")
        return os.path.join(os.path.dirname(str(info.__file__)), "share", "cmake")
    if name in _LAZY:
        return getattr(_imported(_LAZY[name]), name)
    if name in _MODULES:
        return _imported(_MODULES[name])
    raise AttributeError(f"module 'staticrt' has no attribute {name!r}")


def _imported(module: str) -> Any:
    """A module of the package. Hundreds may be imported for it, whose functions and classes all stay alive."""
    collector = importlib.import_module("staticrt.frontend.collector")
    with collector.seldom_collecting():
        return importlib.import_module(module)


def __dir__() -> list[str]:
    return list(__all__)
