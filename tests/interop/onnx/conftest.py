"""torch's exporter parses its 500 functions anew for each export; the tests share what it parsed."""

import copy

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_registry():
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    make, made = ONNXRegistry.from_torchlib, {}

    def from_torchlib(opset_version):
        if opset_version not in made:
            made[opset_version] = make(opset_version)
        registry = copy.copy(made[opset_version])
        registry.functions = {name: list(found) for name, found in registry.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(from_torchlib))
        yield
