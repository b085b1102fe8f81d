"""The torch-tensorrt adapter against a recording stand-in, and against the released wheel's source."""

import ast
import importlib.metadata
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from torch import fx

import staticrt
from staticrt.errors import AcceleratorUnavailable
from staticrt.interop.tensorrt.accelerator import TensorRT

VERSION = "2.13.0"


class Stand:
    """Stands in for torch_tensorrt.dynamo and writes down how it is called."""

    def __init__(self):
        self.calls = []

    def compile(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return args[0].module()


@pytest.fixture
def stand(monkeypatch):
    made = Stand()
    package, dynamo = types.ModuleType("torch_tensorrt"), types.ModuleType("torch_tensorrt.dynamo")
    dynamo.compile = made.compile
    monkeypatch.setitem(sys.modules, "torch_tensorrt", package)
    monkeypatch.setitem(sys.modules, "torch_tensorrt.dynamo", dynamo)
    original = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: VERSION if name == "torch-tensorrt" else original(name)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return made


def node(device, dtype=torch.float32):
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.relu.default, (x,))
    for each in (x, y):
        each.meta["val"] = torch.empty(2, dtype=dtype, device="meta") if device == "cpu" else OnCuda(dtype)
    return y


class OnCuda(torch.Tensor):
    """Says it is on CUDA, where there is none."""

    @staticmethod
    def __new__(cls, dtype):
        return torch.empty(2, dtype=dtype).as_subclass(cls)

    is_cuda = True


def test_nodes_on_cuda_in_dtypes_of_tensorrt_are_supported():
    accelerator = TensorRT()
    assert accelerator.supports(node("cuda"))
    assert accelerator.supports(node("cuda", torch.float16))
    assert not accelerator.supports(node("cuda", torch.float64))
    assert not accelerator.supports(node("cuda", torch.complex64))
    assert not accelerator.supports(node("cpu"))


def test_it_is_called_with_the_program_and_its_inputs(stand, monkeypatch):
    monkeypatch.setattr(TensorRT, "supports", lambda self, node: True)
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4), torch.nn.ReLU()] * 3).eval()
    compiled = staticrt.compile(model, accelerators="tensorrt")
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    ((args, kwargs),) = stand.calls
    (program,) = args
    assert isinstance(program, torch.export.ExportedProgram)
    (given,) = kwargs["arg_inputs"]
    assert given.shape == x.shape
    assert kwargs["min_block_size"] == 5
    assert kwargs["pass_through_build_failures"] is True


def test_availability_names_what_is_missing(stand, monkeypatch):
    usable, reason = TensorRT().is_available()
    assert usable
    assert f"torch-tensorrt {VERSION}" in reason
    monkeypatch.setattr(
        "staticrt.interop.tensorrt.accelerator._dynamo",
        lambda: (_ for _ in ()).throw(Exception("libnvinfer.so.11 not found")),
    )
    usable, reason = TensorRT().is_available()
    assert not usable
    assert f"torch-tensorrt {VERSION} does not load: libnvinfer.so.11 not found" in reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert TensorRT().is_available()[1].startswith("no CUDA device")
    with pytest.raises(AcceleratorUnavailable, match=r"pip install 'staticrt\[tensorrt\]'"):
        staticrt.compile(torch.nn.ReLU(), accelerators="tensorrt")


def wheel() -> Path:
    """The released wheel, fetched once without its dependencies; it is read, never installed or imported."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "staticrt-tests"
    found = sorted(folder.glob(f"torch_tensorrt-{VERSION}-*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        try:
            subprocess.run(
                [*command, f"torch-tensorrt=={VERSION}"], check=True, capture_output=True, timeout=60
            )
        except (subprocess.SubprocessError, OSError):
            pytest.skip(f"the wheel torch-tensorrt {VERSION} cannot be fetched: no package index here")
        found = sorted(folder.glob(f"torch_tensorrt-{VERSION}-*.whl"))
    return found[0]


def test_the_released_compile_takes_these_arguments(stand, monkeypatch):
    with zipfile.ZipFile(wheel()) as archive:
        source = archive.read("torch_tensorrt/dynamo/_compiler.py").decode()
        exported = archive.read("torch_tensorrt/dynamo/__init__.py").decode()
    assert "compile," in exported.split("from ._compiler import", 1)[1].split(")", 1)[0]
    (function,) = [
        n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "compile"
    ]
    positional = [a.arg for a in function.args.args]
    keywords = {a.arg for a in function.args.kwonlyargs} | set(positional)
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(2),))
    TensorRT().compile(program, [torch.randn(2)])
    ((args, given),) = stand.calls
    assert positional[: len(args)] == ["exported_program"]
    assert set(given) <= keywords
