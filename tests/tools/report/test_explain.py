"""`explain()`, `metrics()` and the pictures say what is there."""

import json
from xml.etree import ElementTree

import pytest
import torch

import staticrt
from staticrt.errors import InputError, OptionError
from staticrt.tools.report.arena_plot import find_layout
from staticrt.tools.report.inspection import Tools, inspectable
from tests.support.report_models import Loop, Net, Prints


def test_explain_names_kernels_memory_and_signatures(net, x):
    for rows in (16, 3, 3):  # another size is prepared when it comes again
        net(torch.randn(rows, 64))
    (report,) = net.explain().traces
    assert [s.inputs for s in report.signatures] == [("x: float32[16, 64]",), ("x: float32[3, 64]",)]
    for signature, rows in zip(report.signatures, (16, 3), strict=True):
        assert signature.output_bytes == rows * 8 * 4
        assert signature.lower_bound_bytes <= signature.arena_bytes <= signature.values_bytes + 64 * 8
        assert signature.unmanaged_bytes == 0
        assert sum(count for _, count in signature.kernels) == len(signature.steps)
    text = str(net.explain())
    assert "x.shape[1] == 64" in text
    assert "kernels:" in text
    details = net.explain().details()
    assert "linear_default … add_tensor = linear+gelu+mul+add: chain [gemm" in details
    assert "linear_default_1 = linear: call [gemm" in details
    json.dumps(net.explain().to_dict())


def test_calls_that_need_no_python_are_counted(net, x):
    for _ in range(7):
        net(x)
    (report,) = net.explain().traces
    assert report.calls == 7


def test_of_many_signatures_the_text_shows_the_latest(net):
    for rows in (*range(1, 8), *range(2, 8)):
        net(torch.randn(rows, 64))
    explained = net.explain()
    assert len(explained.traces[0].signatures) == 7
    text = str(explained)
    assert [f"float32[{rows}, 64]" in text for rows in range(1, 8)] == [False] * 3 + [True] * 4
    assert "and 3 other signatures, which details() lists" in text
    assert all(f"float32[{rows}, 64]" in explained.details() for rows in range(1, 8))


def test_metrics_count_nodes_memory_and_signatures(net, x):
    for _ in range(5):
        net(x)
    for _ in range(2):
        net(torch.randn(3, 64))
    (graph,) = net.metrics().graphs
    assert graph.nodes["total"] == 7
    assert graph.kinds["aten::linear"] == {"out": 2, "native": 0, "fallback": 0, "control": 0}
    assert (graph.hits, graph.general_runs, graph.prepared) == (4, 3, 2)
    assert 0 < graph.lower_bound_bytes <= graph.arena_bytes
    assert graph.first_iteration_ns > graph.prepare_ns / 2 > 0
    assert graph.general_ns >= graph.first_iteration_ns
    assert net.metrics().times is None
    times = net.metrics(x, runs=3).times
    assert len(times.nodes) == len(net.profile(x, runs=1).rows)
    assert times.total > 0
    json.loads(net.metrics(x, runs=1).to_json())
    assert "arena" in str(net.metrics(x, runs=1))


def test_metrics_reach_into_bodies():
    compiled = staticrt.compile(Loop())
    compiled(torch.randn(8))
    names = [graph.name for graph in compiled.metrics().graphs]
    assert names == ["graph 0", "graph 0, body 0 of while_loop", "graph 0, body 1 of while_loop"]
    body = compiled.metrics().graphs[2]
    assert body.hits + body.general_runs == 3


def test_storage_groups_of_the_general_path_are_counted(x):
    compiled = staticrt.compile(Net().eval(), prepared=False)
    for _ in range(3):
        compiled(x)
    (graph,) = compiled.metrics().graphs
    assert graph.managed_tensors == 6
    assert graph.reused_tensors > 0
    assert graph.managed_bytes >= 2 * 16 * 48 * 4


def test_parts_are_graphs_of_their_own(capsys):
    compiled = staticrt.compile(Prints())
    compiled(torch.ones(4))
    assert [report.route for report in compiled.explain().traces] == ["partial", "partial"]
    assert len(compiled.metrics().graphs) == 2
    assert "print" in str(compiled.explain())


def test_the_layout_is_the_plan(net, x):
    net(x)
    name, layout = find_layout(inspectable(net).graphs(), 0, -1)
    assert name == "graph 0"
    inside = [b for b in layout.blocks if b.offset >= 0]
    for a in inside:
        for b in inside:
            apart_in_time = a.end <= b.begin or b.end <= a.begin
            apart_in_space = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            assert a is b or apart_in_time or apart_in_space
    assert max(b.offset + b.size for b in inside) <= layout.arena_bytes
    assert max(layout.live_bytes(("arena", "workspace"))) <= layout.lower_bound_bytes
    (output,) = [b for b in layout.blocks if b.kind == "output"]
    assert output.size == 16 * 8 * 4
    assert layout.peak_bytes == layout.arena_bytes + output.size


def test_pictures_are_well_formed(net, x, tmp_path):
    net(x)
    for write in (net.plot_memory, net.draw):
        write(tmp_path / "picture.svg")
        text = (tmp_path / "picture.svg").read_text()
        ElementTree.fromstring(text)
        assert "linear_default" in text
        write(tmp_path / "picture.html")
        assert (tmp_path / "picture.html").read_text().startswith("<!doctype html>")
    net.draw(tmp_path / "graph.dot")
    dot = (tmp_path / "graph.dot").read_text()
    assert dot.startswith('digraph "graph 0"')
    assert '"x" -> "linear_default";' in dot
    with pytest.raises(OptionError, match="name it"):
        net.draw(tmp_path / "graph.gif")


def test_pictures_need_a_graph(net, tmp_path):
    with pytest.raises(InputError, match="no compiled graph 0"):
        net.draw(tmp_path / "graph.svg")
    net(torch.randn(2, 64))
    with pytest.raises(InputError, match="1 prepared signatures, no number 3"):
        net.plot_memory(tmp_path / "memory.svg", signature=3)


def test_the_models_own_attributes_win(x):
    module = Net().eval()
    module.metrics = {"accuracy": 1.0}
    compiled = staticrt.compile(module)
    compiled(x)
    assert compiled.metrics == {"accuracy": 1.0}
    assert Tools.metrics(compiled).graphs[0].nodes["total"] == 7
    assert compiled.profile(x, runs=1).runs == 1
