"""A module of small models for the command line, and a way to call it."""

import importlib
import json
import sys

import pytest

from staticrt.tools.cli.main import main

TOY = """
import torch

class Toy(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.a = torch.nn.Linear(16, width)
        self.b = torch.nn.Linear(width, 4)

    def forward(self, x, scale=2.0):
        return self.b(torch.relu(self.a(x)) * scale)

class Embed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids, mask):
        return {"rows": self.table(ids) * mask, "count": ids.shape[0]}

class Wrong(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(3, 3)

class Broken(torch.nn.Module):
    def __init__(self):
        raise ValueError("no weights")

class NeedsWidth(torch.nn.Module):
    def __init__(self, width):
        super().__init__()

def add(x, y):
    return x + y, torch.zeros(2)

constant = 3
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_models.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    sys.modules.pop("toy_models", None)
    return "toy_models:Toy"


@pytest.fixture
def call(capsys):
    """Exit code, stdout, stderr of a command."""

    def run(*words):
        try:
            code = main(list(words))
        except SystemExit as error:
            code = error.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


@pytest.fixture
def onnx_file(toy, tmp_path):
    pytest.importorskip("onnx", reason="needs the package onnx")
    import onnx
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("data.in", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    nodes = [helper.make_node("Relu", ["data.in"], ["r"]), helper.make_node("Add", ["r", "r"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)]
    )
    onnx.save(model, tmp_path / "two.onnx")
    return "two.onnx"


ODD = """
import torch

class Talks(torch.nn.Module):
    def forward(self, x):
        print("hello")
        return x + 1

class Mixed(torch.nn.Module):
    def forward(self, x):
        return {"y": x + 1, "kind": "mixed", "none": None, "nan": float("nan"), "low": -float("inf")}
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    return "odd.py"


@pytest.fixture
def strict_json():
    """Parses a document; NaN and Infinity, which JSON does not have, are errors."""

    def parse(text):
        def refuse(name):
            raise AssertionError(f"{name} is not JSON")

        return json.loads(text, parse_constant=refuse)

    return parse
