"""OpenVINO over its own PyTorch frontend, in float32 as eager is."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from staticrt.models.bench.peers.base import Call, Peer


def _load() -> None:
    importlib.import_module("openvino")
    importlib.import_module("openvino.frontend.pytorch")


def _prepare(module: nn.Module, arguments: tuple[Tensor, ...], threads: int) -> Call:
    openvino: Any = importlib.import_module("openvino")
    shapes = [list(argument.shape) for argument in arguments]
    model = openvino.convert_model(module, example_input=arguments, input=shapes)
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    count = len(compiled.outputs)

    def call(*inputs: Tensor) -> list[Tensor]:
        # share_outputs would be faster, but its answers are overwritten by the next call.
        answers = request.infer([value.numpy() for value in inputs], share_inputs=True, share_outputs=False)
        return [torch.from_numpy(answers[index]) for index in range(count)]

    return call


OPENVINO = Peer("openvino", _prepare, packages=(("openvino", "openvino"),), slow=True, load=_load)
