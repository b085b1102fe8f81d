"""staticrt: a static runtime for PyTorch.

`staticrt.compile(module)` is the front door. Everything is imported at first use, so that
`import staticrt` and `staticrt.errors` cost nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staticrt import errors as errors
    from staticrt import memory as memory
    from staticrt import planner as planner
    from staticrt import routes as routes
    from staticrt.archive import LoadedModel as LoadedModel
    from staticrt.archive import load as load
    from staticrt.archive import save as save
    from staticrt.asynchronous import Future as Future
    from staticrt.asynchronous import fork as fork
    from staticrt.asynchronous import set_num_async_threads as set_num_async_threads
    from staticrt.asynchronous import wait as wait
    from staticrt.compiler import CompiledFunction as CompiledFunction
    from staticrt.compiler import CompiledModule as CompiledModule
    from staticrt.compiler import compile as compile
    from staticrt.onnx.export import to_onnx as to_onnx
    from staticrt.onnx.load import from_onnx as from_onnx
    from staticrt.training.step import CompiledStep as CompiledStep
    from staticrt.training.step import compile_step as compile_step

__version__ = "0.1.0"
if TYPE_CHECKING:
    cmake_prefix_path: str

# public name -> module that defines it
_LAZY: dict[str, str] = {
    "CompiledFunction": "staticrt.compiler",
    "CompiledModule": "staticrt.compiler",
    "CompiledStep": "staticrt.training.step",
    "Future": "staticrt.asynchronous",
    "LoadedModel": "staticrt.archive",
    "compile": "staticrt.compiler",
    "compile_step": "staticrt.training.step",
    "fork": "staticrt.asynchronous",
    "from_onnx": "staticrt.onnx.load",
    "load": "staticrt.archive",
    "save": "staticrt.archive",
    "set_num_async_threads": "staticrt.asynchronous",
    "to_onnx": "staticrt.onnx.export",
    "wait": "staticrt.asynchronous",
}
_MODULES = (
    "errors",
    "memory",
    "planner",
    "routes",
)

__all__ = sorted([*_LAZY, *_MODULES, "__version__", "cmake_prefix_path"])


def __getattr__(name: str) -> Any:
    if name == "cmake_prefix_path":  # for find_package(staticrt) in CMake
        info = importlib.import_module("staticrt._build_info")
        return os.path.join(os.path.dirname(str(info.__file__)), "share", "cmake")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"staticrt.{name}")
    raise AttributeError(f"module 'staticrt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
