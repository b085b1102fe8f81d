import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import staticrt

path = Path(__file__).with_name("models.py")
spec = importlib.util.spec_from_file_location("report_models", path)
models = importlib.util.module_from_spec(spec)
sys.modules["report_models"] = models
spec.loader.exec_module(models)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def net():
    torch.manual_seed(0)
    return staticrt.compile(models.Net().eval())


@pytest.fixture
def x():
    return torch.randn(16, 64)
