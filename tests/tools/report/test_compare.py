"""`compare` finds the stage and the node where results part."""

import pytest
import torch

import staticrt
from staticrt.errors import InputError
from staticrt.passes import pipeline
from staticrt.passes.base import GraphPass, PassResult
from tests.support.report_models import Loop, Prints


def test_equal_results_are_said_to_be_equal(net, x):
    report = net.compare(x)
    assert report.ok
    assert report.checked == 7
    assert str(report) == "compiled equals eager; 7 nodes compared"


@pytest.mark.parametrize("model", [Loop, Prints])
def test_control_flow_and_parts_are_compared_too(model, capsys):
    assert staticrt.compile(model()).compare(torch.randn(8)).ok


def test_state_and_random_numbers_are_put_back():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).train()
    x, mean, random = torch.randn(4, 8), module[0].running_mean.clone(), torch.get_rng_state()
    kept = x.clone()
    assert staticrt.compile(module).compare(x).ok
    assert torch.equal(module[0].running_mean, mean)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, kept)


def test_arguments_that_are_written_are_compared_and_kept():
    def write(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    assert staticrt.compile(write).compare(x).ok
    assert torch.equal(x, torch.zeros(3))


def test_a_kernel_that_is_off_is_named():
    with torch.library._scoped_library("compare_test", "DEF") as library:
        library.define("off(Tensor x) -> Tensor")

        def off(x):
            # The runtime runs below autograd, eager does not.
            key = torch._C._dispatch_key_parse("ADInplaceOrView")
            return x + 1 if torch._C._dispatch_tls_is_dispatch_key_excluded(key) else x.clone()

        library.impl("off", off, "CPU")
        library.impl("off", lambda x: torch.empty_like(x), "Meta")

        def model(x):
            y = torch.relu(x)
            z = torch.ops.compare_test.off(y)
            return torch.tanh(z)

        report = staticrt.compile(model).compare(torch.randn(8))
    assert not report.ok
    assert report.stage == "runtime"
    assert report.first.op == "compare_test.off.default"
    assert report.first.where.startswith("test_compare.py:")
    assert "first node off" in str(report)


class ReluToTanh(GraphPass):
    name = "relu-to-tanh"

    def run(self, gm):
        found = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
        for node in found:
            node.target = torch.ops.aten.tanh.default
        return PassResult(gm, changed=bool(found), count=len(found))


def test_a_pass_that_changes_results_is_blamed(monkeypatch):
    monkeypatch.setattr(pipeline, "PIPELINE", (*pipeline.PIPELINE, (lambda o: ReluToTanh(), "a test")))
    report = staticrt.compile(lambda x: torch.relu(x) + 1).compare(torch.randn(8))
    assert (report.ok, report.stage) == (False, "passes")
    assert report.first.op == "aten.tanh.default"


def test_tolerances_come_together(net, x):
    with pytest.raises(InputError, match="together"):
        net.compare(x, rtol=1e-3)
    assert net.compare(x, rtol=1e-3, atol=1e-3).ok
