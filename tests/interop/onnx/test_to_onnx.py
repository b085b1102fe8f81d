"""`staticrt.to_onnx`, and the way there and back."""

import os

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import OnnxError


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x, scale):
        return self.linear(self.norm(x)).softmax(-1) * scale.unsqueeze(-1), x.mean(1)


def session(model):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_onnx_runtime_and_from_onnx_agree_with_eager_for_other_sizes():
    torch.manual_seed(0)
    module = Small().eval()
    model = staticrt.to_onnx(module, (torch.randn(3, 5, 8), torch.randn(3, 5)), input_names=["x", "scale"])
    there, back = session(model), staticrt.from_onnx(model)
    assert back.input_names == ("x", "scale")
    assert {"norm.weight", "norm.bias", "linear.bias"} <= set(back.state_dict())
    for batch, length in ((3, 5), (2, 7), (6, 4)):
        x, scale = torch.randn(batch, length, 8), torch.randn(batch, length)
        with torch.no_grad():
            expected, found = module(x, scale), back(x, scale)
        for want, have, other in zip(
            expected, found, there.run(None, {"x": x.numpy(), "scale": scale.numpy()}), strict=True
        ):
            torch.testing.assert_close(have, want)
            np.testing.assert_allclose(other, want, rtol=1e-4, atol=1e-6)
    report = back.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


def test_a_compiled_module_is_exported_as_its_module(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    path = tmp_path / "model.onnx"
    x = torch.randn(2, 3, 8, 8)
    model = staticrt.to_onnx(staticrt.compile(module), x, path, dynamic=False)
    onnx.checker.check_model(os.fspath(path))
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    with torch.no_grad():
        torch.testing.assert_close(staticrt.from_onnx(path)(x), module(x), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_exported_says_why():
    class Branch(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(OnnxError, match="Branch cannot be exported"):
        staticrt.to_onnx(Branch(), torch.randn(3))
    with pytest.raises(OnnxError, match=r"takes an nn.Module"):
        staticrt.to_onnx(torch.relu, torch.randn(3))
    with pytest.raises(OnnxError, match="args is a tuple"):
        staticrt.to_onnx(Small(), {"x": 1})
    with pytest.raises(OnnxError, match="cannot write"):
        staticrt.to_onnx(nn.ReLU(), torch.randn(3), "/nowhere/model.onnx")


@pytest.mark.parametrize("name", ["mlp", "encoder_tiny"])
def test_models_of_the_zoo_survive_the_way_there_and_back(name):
    from staticrt.models import zoo

    entry = zoo.get(name)
    module = entry.build()
    sizes = list(entry.variants)
    model = staticrt.to_onnx(
        module, entry.inputs(variant=entry.trace_variant), dynamic_shapes=entry.dynamic_shapes()
    )
    back = staticrt.from_onnx(model)
    for variant in sizes:
        args = entry.inputs(variant=variant)
        with torch.no_grad():
            torch.testing.assert_close(back(*args), module(*args), rtol=1e-4, atol=1e-4)
    assert not back.explain().eager
