"""Steps carry the path of the layer they come from: in profiles, Perfetto traces, torch's profiler and logs."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import staticrt
from tests.support import run_fresh


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.feed = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + self.feed(self.norm(x)).cumsum(-1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).cumsum(-1)


EXPECTED = {
    "layers.0.norm",
    "layers.0.feed",
    "layers.0",
    "layers.1.norm",
    "layers.1.feed",
    "layers.1",
    "head",
}


def modules_of(report):
    return {path for row in report.rows for path in row.module.split()}


@pytest.mark.parametrize("method", [False, True], ids=["module", "method"])
def test_a_profile_names_the_layers(method, tmp_path):
    net = Net().eval()
    fast = staticrt.compile(net.forward if method else net)
    with torch.no_grad():
        report = fast.profile(torch.randn(3, 16), runs=3)
    assert modules_of(report) == EXPECTED
    by_module = {row.kind: row for row in report.by_module()}
    assert sum(row.time_ns for row in by_module.values()) == pytest.approx(
        sum(r.self_ns for r in report.rows)
    )
    norm = next(row for row in report.rows if row.op == "layer_norm" and "layers.1" in row.module)
    assert norm.module == "layers.1.norm"
    report.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["module"] for event in events if event.get("cat") == "step"} >= EXPECTED - {
        "layers.0"
    }


def test_torch_s_profiler_shows_steps_inside_of_their_layers(tmp_path):
    fast = staticrt.compile(Net().eval())
    x = torch.randn(3, 16)
    with torch.no_grad():
        for _ in range(2):
            fast(x)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            fast(x)
    found = {}
    for event in seen.events():
        if event.name.startswith("staticrt::") and event.cpu_parent is not None:
            found.setdefault(event.cpu_parent.name, set()).add(event.name)
    assert "staticrt::layer_norm" in found["nn.Module: layers.1.norm"]
    assert any("linear" in name for name in found["nn.Module: head"])
    seen.export_chrome_trace(str(tmp_path / "torch.json"))
    names = {event.get("name") for event in json.loads((tmp_path / "torch.json").read_text())["traceEvents"]}
    assert {"nn.Module: layers.0.norm", "staticrt::layer_norm"} <= names


def test_the_general_path_has_the_same_scopes():
    fast = staticrt.compile(Net().eval(), prepared=False)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
        fast(torch.randn(3, 16))
    parents = {e.cpu_parent.name for e in seen.events() if e.name.startswith("staticrt::") and e.cpu_parent}
    assert "nn.Module: layers.1.norm" in parents


class Split(Net):
    def forward(self, x):
        x = self.layers[0](x)
        print("between")
        return self.head(self.layers[1](x)).cumsum(-1)


def test_parts_that_dynamo_splits_have_layers_too(capsys):
    fast = staticrt.compile(Split().eval(), deterministic=True)
    with torch.no_grad():
        report = fast.profile(torch.randn(3, 16), runs=3)
    assert fast.explain().eager
    assert {"layers.0.norm", "layers.1.feed", "head"} <= modules_of(report)


def test_a_layer_that_is_used_twice_and_a_function_without_layers():
    shared = torch.nn.Linear(4, 4)
    net = torch.nn.Sequential(shared, torch.nn.ReLU(), shared).eval()
    with torch.no_grad():
        report = staticrt.compile(net).profile(torch.randn(2, 4), runs=2)
        assert modules_of(report) == {"0", "1"}
        report = staticrt.compile(lambda x: torch.relu(x) * 2).profile(torch.randn(2), runs=2)
    assert modules_of(report) == set()


PROGRAM = """
import torch, staticrt
fast = staticrt.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()))
with torch.no_grad():
    fast(torch.randn(2, 4))
"""


@pytest.mark.parametrize(("logs", "graph"), [("staticrt", False), ("+staticrt", True), ("dynamo", False)])
def test_torch_logs_show_what_is_traced_with_its_layers(logs, graph):
    done = run_fresh(PROGRAM, variables={"TORCH_LOGS": logs})
    assert ("traced Sequential: " in done.stderr) is ("staticrt" in logs)
    assert ("aten.relu" in done.stderr and "layer 1" in done.stderr) is graph
