from staticrt import errors as errors
from staticrt import graphs as graphs
from staticrt import memory as memory
from staticrt.api import accelerators as accelerators
from staticrt.api.compile import CompiledFunction as CompiledFunction
from staticrt.api.compile import CompiledModule as CompiledModule
from staticrt.api.compile import compile as compile
from staticrt.api.step import compile_step as compile_step
from staticrt.archive.loaded import LoadedModel as LoadedModel
from staticrt.archive.loaded import load as load
from staticrt.archive.writer import save as save
from staticrt.interop.onnx.export import to_onnx as to_onnx
from staticrt.interop.onnx.load import from_onnx as from_onnx
from staticrt.memory import planner as planner
from staticrt.runtime import autotuning as autotuning
from staticrt.runtime.asynchronous import Future as Future
from staticrt.runtime.asynchronous import fork as fork
from staticrt.runtime.asynchronous import set_num_async_threads as set_num_async_threads
from staticrt.runtime.asynchronous import wait as wait
from staticrt.training.step import CompiledStep as CompiledStep

__version__: str
cmake_prefix_path: str
