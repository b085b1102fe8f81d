"""ONNX Runtime over torch's own exporter."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from staticrt.models.bench.peers.base import Call, Peer


def _load() -> None:
    for name in ("onnxscript", "onnxruntime", "torch.onnx._internal.exporter._core"):
        importlib.import_module(name)


def session_call(model: str | bytes, threads: int) -> Call:
    """A function of tensors that runs a model, given by its path or as its bytes."""
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    run = session.run

    def call(*inputs: Tensor) -> list[Tensor]:
        feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in run(None, feed)]

    return call


def _prepare(module: nn.Module, arguments: tuple[Tensor, ...], threads: int) -> Call:
    program: Any = torch.onnx.export(module, arguments, dynamo=True, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.onnx"))
        program.save(path)
        return session_call(path, threads)


ONNX_RUNTIME = Peer(
    "onnxruntime",
    _prepare,
    packages=(("onnx", "onnx"), ("onnxscript", "onnxscript"), ("onnxruntime", "onnxruntime")),
    load=_load,
)
