import pytest
import torch

import staticrt
from tests.support import report_models as models


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
