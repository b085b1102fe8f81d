"""Which of a model's Python state calls compare, and what they need not compare."""

import copy
import copyreg
import sys
import traceback
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.frontend.guards.state import Snapshot


def test_exported_modules_are_called_without_python():
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
    fast = staticrt.compile(program.module())
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(3, 4))
        before = fast._executor.fast.calls
        fast(torch.ones(3, 4))
    assert fast._executor.fast.calls == before + 1


BY_TYPE = {}


def backend_of(x):
    """A cache as libraries of array operations keep it (einops): by the type of a tensor, made by asking for modules."""
    found = BY_TYPE.get(type(x))
    if found is None:
        found = BY_TYPE[type(x)] = "torch" if "torch" in sys.modules else ""
    return found


@torch.no_grad()
def test_a_cache_by_types_of_tensors_is_no_state_of_a_call():
    def function(x):
        return x * 2 if backend_of(x) == "torch" else x

    compiled = staticrt.compile(function)
    for n in (3, 3, 4, 5):
        x = torch.randn(n)
        assert torch.equal(compiled(x), x * 2)
    explanation = compiled.explain()
    assert len(explanation.traces) == 1
    assert not [item for item in explanation.eager if "FakeTensor" in item.reason]
    assert list(BY_TYPE) in ([], [torch.Tensor])
    before = compiled._executor.fast.calls
    sys.modules["a_module_of_this_test"] = sys  # an import is not a change of what the model reads
    try:
        assert torch.equal(compiled(x), x * 2)
    finally:
        del sys.modules["a_module_of_this_test"]
    assert compiled._executor.fast.calls == before + 1


def test_a_list_made_anew_of_the_same_objects_is_no_change():
    """Detectors set up their anchors in each call; after the first they are there already."""

    class Anchors(nn.Module):
        def __init__(self):
            super().__init__()
            self.anchors = [torch.ones(2), torch.full((2,), 3.0)]

        def forward(self, x):
            self.anchors = [anchor.to(x.dtype) for anchor in self.anchors]
            return x + self.anchors[0] * self.anchors[1]

    module = Anchors()
    fast = staticrt.compile(module)
    x = torch.randn(4, 2)
    with torch.no_grad():
        for _call in range(2):
            assert torch.equal(fast(x), x + 3)
        module.anchors = [torch.zeros(2), torch.ones(2)]
        assert torch.equal(fast(x), x)
        module.anchors[0] = torch.ones(2)
        assert torch.equal(fast(x), x + 1)
        assert fast.explain().eager == ()
        assert torch.equal(fast(x.double()), x.double() + 1)  # which changes them
        assert [anchor.dtype for anchor in module.anchors] == [torch.float64] * 2


def test_what_another_thread_patches_in_torch_for_a_while_is_not_put_back():
    """A trace that begins while `torch.export` runs in another thread sees its `nn.Module.__call__`."""
    before = nn.Module.__call__

    def patched(module, *args):
        return before(module, *args)

    model = nn.Sequential(nn.Linear(2, 2))
    with mock.patch.object(nn.Module, "__call__", patched), mock.patch.object(F, "linear", torch.matmul):
        snapshot = Snapshot([("model", model)])
        snapshot.add_names({"linear"})
        snapshot.add_scope(vars(F), {"linear"})
    snapshot.restore()
    assert nn.Module.__call__ is before
    assert F.linear is torch._C._nn.linear


value = None


def test_a_global_that_code_names_as_an_attribute_only_is_not_compared():
    """As in a script whose loop assigns `x` and `data`, which its model has as attributes."""
    global value

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.value = 2.0

        def forward(self, x):
            return x * self.value + 1

    net = Net()
    fast = staticrt.compile(net)
    x = torch.randn(4)
    with torch.no_grad():
        for number in range(4):
            value = number
            assert torch.equal(fast(x), net(x))
        assert str(fast.explain()).count("(whole") == 1
        net.value = 3.0
        assert torch.equal(fast(x), net(x))


@pytest.mark.parametrize(
    "read", ["globals()['value']", "eval('value')", "vars(sys.modules[__name__])['value']"]
)
def test_a_global_found_by_a_computed_name_is_compared(read):
    global value
    function = eval(f"lambda x: x * {read} + 1", globals())
    fast = staticrt.compile(function)
    x = torch.randn(4)
    with torch.no_grad():
        for number in (1.0, 1.0, 2.0, 3.0):
            value = number
            assert torch.equal(fast(x), x * number + 1)


def _after_a_break(function):
    def model(x):
        print(end="")
        return function(x)

    return model


@pytest.mark.parametrize("around", [lambda function: function, _after_a_break], ids=["whole", "parts"])
def test_how_numpy_prints_is_compared(around):
    array = np.array([1.23456])
    model = around(lambda x: (x * 2, str(array)))
    compiled = staticrt.compile(model)
    for digits in (3, 3, 2, 4):
        with np.printoptions(precision=digits):
            assert compiled(torch.ones(2))[1] == model(torch.ones(2))[1]


@pytest.mark.parametrize("around", [lambda function: function, _after_a_break], ids=["whole", "parts"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_how_a_class_is_copied_is_compared(copied, around):
    class Config:
        def __init__(self, scale):
            self.scale = scale

    config = Config(2.0)
    model = around(lambda x: x * copied(config).scale)
    compiled = staticrt.compile(model)
    with mock.patch.dict(copyreg.dispatch_table):
        for factor in (1.0, 2.0, 3.0):
            assert torch.equal(compiled(torch.ones(2)), model(torch.ones(2)))
            copyreg.pickle(Config, lambda config, factor=factor: (Config, (config.scale * factor,)))
        assert torch.equal(compiled(torch.ones(2)), model(torch.ones(2)))


@pytest.mark.parametrize(
    "is_handling",
    [lambda: sys.exc_info()[1] is not None, lambda: "KeyError" in traceback.format_exc()],
    ids=["exc_info", "format_exc"],
)
@pytest.mark.parametrize("around", [lambda function: function, _after_a_break], ids=["whole", "parts"])
def test_the_error_that_a_caller_handles_is_seen(around, is_handling):
    compiled = staticrt.compile(around(lambda x: x * 3 if is_handling() else x * 2))

    def handling():
        try:
            raise KeyError
        except KeyError:
            return compiled(torch.ones(1)).item()

    with torch.no_grad():
        for _call in range(3):
            assert (compiled(torch.ones(1)).item(), handling()) == (2.0, 3.0)


def _not_annotated(x):
    return x


def test_annotations_that_a_function_gets_later_are_seen():
    compiled = staticrt.compile(lambda x: x + len(_not_annotated.__annotations__))
    with torch.no_grad(), mock.patch.dict(_not_annotated.__annotations__):
        for number, name in enumerate("abc"):
            assert compiled(torch.zeros(1)).item() == number
            _not_annotated.__annotations__[name] = int
