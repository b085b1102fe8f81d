"""torch-tensorrt as an accelerator for subgraphs on CUDA.

It has never run on real TensorRT here: tests check the arguments of its one call against a recording stand-in and
against the syntax tree of the released wheel.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

# The dtypes of TensorRT; nodes of other dtypes stay in the runtime.
_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool})


class TensorRT:
    """Compiles subgraphs with `torch_tensorrt.dynamo.compile`.

    Args:
        min_block_size: nodes below which torch-tensorrt leaves a block to PyTorch.
    """

    name = "tensorrt"
    fix = "pip install 'staticrt[tensorrt]' where CUDA and TensorRT are, or leave accelerators=None"

    def __init__(self, min_block_size: int = 5) -> None:
        self.min_nodes = min_block_size

    def is_available(self) -> tuple[bool, str]:
        found = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
        if not torch.cuda.is_available():
            return False, f"no CUDA device ({found})"
        try:
            version = importlib.metadata.version("torch-tensorrt")
        except importlib.metadata.PackageNotFoundError:
            return False, f"torch-tensorrt is not installed ({found})"
        try:
            _dynamo()
        except Exception as error:  # without libnvinfer it raises a plain Exception
            return False, f"torch-tensorrt {version} does not load: {str(error).splitlines()[0]} ({found})"
        return True, f"torch-tensorrt {version}, {found}"

    def supports(self, node: fx.Node) -> bool:
        """Whether all tensors are on CUDA and of dtypes of TensorRT. torch-tensorrt runs other unsupported operators in PyTorch."""
        tensors = [node.meta["val"], *(source.meta.get("val") for source in node.all_input_nodes)]
        return all(
            isinstance(value, torch.Tensor) and value.is_cuda and value.dtype in _DTYPES for value in tensors
        )

    def compile(
        self, program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        compiled: Callable[..., Any] = _dynamo().compile(
            program,
            arg_inputs=list(inputs),
            min_block_size=self.min_nodes,
            # Let failures raise, so that the runtime reports them and falls back.
            pass_through_build_failures=True,
        )
        return compiled


def _dynamo() -> Any:
    return importlib.import_module("torch_tensorrt.dynamo")
