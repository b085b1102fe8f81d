"""`compiled.profile`: what it counts is right, what it times adds up, and it changes nothing."""

import json

import pytest
import torch

import staticrt
from staticrt.errors import InputError, OptionError
from staticrt.native import _C
from staticrt.ops.work import Shape, flops
from staticrt.tools.report.profile import profile
from staticrt.tools.report.roofline import Roofline
from tests.support.report_models import Loop, Net, Prints, Subclass


def test_every_step_is_timed_and_named_by_its_model_line(net, x):
    report = net.profile(x, runs=5)
    assert report.paths == ("prepared",)
    assert report.runs == 5
    steps = [row for row in report.rows if row.kind in ("call", "chain")]
    assert [row.op for row in steps] == ["linear+gelu+mul+add", "layer_norm", "linear", "softmax"]
    assert all(row.where.startswith("report_models.py:") for row in steps)
    assert all(row.self_ns > 0 and row.calls == 1 for row in steps)
    assert len(next(row for row in steps if row.kind == "chain").nodes) == 4


def test_times_add_up(net, x):
    report = net.profile(x, runs=20)
    inside = sum(row.self_ns for row in report.rows)
    assert 0 < inside <= report.traced_ns
    assert sum(row.share for row in report.rows) <= 1.0 + 1e-9
    by_kind, by_op, by_line = report.by_kind(), report.by_op(), report.by_line()
    for groups in (by_kind, by_op, by_line):
        assert sum(group.time_ns for group in groups) == pytest.approx(inside)
        assert sum(group.count for group in groups) == len(report.rows)
        assert [g.time_ns for g in groups] == sorted((g.time_ns for g in groups), reverse=True)


def test_flops_and_bytes_are_those_of_the_shapes(net, x):
    rows = {row.name: row for row in net.profile(x, runs=2).rows}
    first = next(row for row in rows.values() if row.kind == "chain")
    assert first.flops == 2 * 16 * 64 * 48 + 16 * 48 + 3 * 16 * 48
    assert first.read_bytes == 4 * (16 * 64 + 48 * 64 + 48)
    assert first.written_bytes == 4 * 16 * 48  # what the pointwise operators add stays in registers
    second = rows["linear_default_1"]
    assert second.flops == 2 * 16 * 48 * 8 + 16 * 8
    assert second.read_bytes == 4 * (16 * 48 + 8 * 48 + 8)
    assert second.written_bytes == 4 * 16 * 8
    assert first.gflops_per_s == pytest.approx(first.flops / first.self_ns)
    assert 0 < first.roofline_share <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("op", "reads", "writes", "constants", "expected"),
    [
        ("aten::mm", [(4, 5), (5, 6)], [(4, 6)], {}, 2 * 4 * 5 * 6),
        ("aten::bmm", [(3, 4, 5), (3, 5, 6)], [(3, 4, 6)], {}, 2 * 3 * 4 * 5 * 6),
        ("aten::addmm", [(6,), (4, 5), (5, 6)], [(4, 6)], {}, 2 * 4 * 5 * 6 + 24),
        ("aten::convolution", [(2, 3, 8, 8), (4, 3, 3, 3)], [(2, 4, 6, 6)], {6: False}, 2 * 2 * 4 * 36 * 27),
        ("aten::convolution", [(2, 3, 8, 8), (3, 4, 3, 3)], [(2, 4, 10, 10)], {6: True}, 2 * 2 * 3 * 64 * 36),
        ("aten::add.Tensor", [(4, 5), (5,)], [(4, 5)], {}, 20),
        ("aten::cat", [(4, 5), (4, 5)], [(8, 5)], {}, 0),
        ("sym::add", [], [], {}, 0),
    ],
)
def test_flops_by_formula(op, reads, writes, constants, expected):
    def shapes(sizes):
        return [Shape("Float", s) for s in sizes]

    assert flops(op, shapes(reads), shapes(writes), constants) == expected


def test_matrix_flops_agree_with_torch(x):
    from torch.utils.flop_counter import FlopCounterMode

    conv = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.Conv2d(8, 4, 3, groups=2, bias=False)
    )
    image = torch.randn(2, 3, 12, 12)
    with FlopCounterMode(display=False) as counter:
        conv(image)
    rows = staticrt.compile(conv.eval()).profile(image, runs=1).rows
    assert sum(row.flops for row in rows if "conv" in row.op) == counter.get_total_flops()


def test_bodies_of_control_flow_are_rows_below_their_node():
    compiled = staticrt.compile(Loop())
    report = compiled.profile(torch.randn(8), runs=3)
    (loop,) = [row for row in report.rows if row.op == "while_loop"]
    inner = [row for row in report.rows if row.depth == 1]
    assert {"tanh", "mul+tanh"} & {row.op for row in inner} or any("tanh" in row.op for row in inner)
    tanh = next(row for row in inner if "tanh" in row.op)
    assert tanh.calls == 3  # three iterations a call
    assert loop.time_ns >= sum(row.time_ns for row in inner) * 0.5
    assert loop.self_ns < loop.time_ns


def test_an_eager_call_is_a_row_with_its_reason():
    compiled = staticrt.compile(lambda x: x + 1)
    report = compiled.profile(torch.ones(3).as_subclass(Subclass), runs=2)
    (row,) = report.rows
    assert row.kind == "eager"
    assert "Subclass" in row.op
    assert 0 < row.self_ns <= report.traced_ns


def test_a_call_that_records_gradients_gets_a_hint(net, x):
    assert net.profile(x, runs=1).hints == ()
    with torch.enable_grad():
        report = net.profile(x, runs=1)
    assert "torch.no_grad()" in report.hints[0]
    assert "hint: gradients were recorded" in str(report)


def test_parts_between_graph_breaks_are_profiled(capsys):
    report = staticrt.compile(Prints()).profile(torch.ones(3), runs=2)
    assert {"mul+add", "relu+sub"} <= {row.op for row in report.rows}
    assert all(row.where.startswith("report_models.py:") for row in report.rows)
    assert report.outside_ns > 0
    assert any(hint.startswith("graph break at report_models.py:") for hint in report.hints)


def test_the_general_path_is_profiled_node_by_node(x):
    compiled = staticrt.compile(Net().eval(), prepared=False)
    report = compiled.profile(x, runs=2)
    assert report.paths == ("general",)
    assert [row.op for row in report.rows] == [
        "linear",
        "gelu",
        "mul",
        "add",
        "layer_norm",
        "linear",
        "softmax",
    ]
    assert report.rows[0].flops == 2 * 16 * 64 * 48 + 16 * 48


def test_json_and_table_hold_the_same_rows(net, x):
    report = net.profile(x, runs=2)
    document = json.loads(report.to_json())
    assert [row["name"] for row in document["rows"]] == [row.name for row in report.rows]
    assert document["rows"][0]["self_ns"] == report.rows[0].self_ns
    assert document["call_ns"] == report.call_ns
    table = report.table(limit=2)
    assert len(table.splitlines()) == 2 + 2 + 1
    assert "more rows" in table
    order = report.table(limit=None, sort="order")
    assert order.index("linear_default") < order.index("layer_norm_default")
    assert "GFLOP/s" in str(report)
    with pytest.raises(OptionError, match="sort is 'time' or 'order'"):
        report.table(sort="size")


def test_chrome_trace_nests_steps_in_runs_in_calls(net, x, tmp_path):
    report = net.profile(x, runs=4)
    report.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    calls = [e for e in spans if e["cat"] == "call"]
    assert len(calls) == 3
    for event in spans:
        assert event["dur"] >= 0
        around = [
            c for c in calls if c["ts"] <= event["ts"] and event["ts"] + event["dur"] <= c["ts"] + c["dur"]
        ]
        assert around, event
    step = next(e for e in spans if e["args"].get("node") == "linear_default_1")
    assert step["args"]["flops"] == 2 * 16 * 48 * 8 + 16 * 8
    assert step["args"]["line"].startswith("report_models.py:")


def test_profiling_changes_nothing(net, x):
    net(x)
    want, kept = net(x), x.clone()
    net.profile(x, runs=2)
    torch.testing.assert_close(net(x), want, rtol=0, atol=0)
    assert torch.equal(x, kept)


def test_a_profile_inside_a_profile_is_refused(net, x):
    with pytest.raises(InputError, match="profiled already"):
        profile(lambda: net.profile(x, runs=1), runs=1)
    assert net.profile(x, runs=1).runs == 1  # and the thread is free again
    with pytest.raises(InputError, match="at least one run"):
        net.profile(x, runs=0)


def test_a_call_that_raises_leaves_no_trace_behind(net, x):
    with pytest.raises(RuntimeError):
        net.profile(torch.randn(3, 5), runs=1)
    assert net.profile(x, runs=1).runs == 1


def test_a_trace_sees_only_its_own_thread(net, x):
    import threading

    net(x)
    net(x)
    _C.start_trace()
    try:
        other = threading.Thread(target=lambda: [net(x) for _ in range(3)])
        other.start()
        other.join()
        net(x)
    finally:
        runs = _C.stop_trace()
    assert len(runs) == 1


def test_torch_profiler_sees_the_steps_and_only_while_it_runs(net, x):
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    net(x)
    net(x)
    with torch_profile(activities=[ProfilerActivity.CPU]) as seen:
        net(x)
    names = {event.key for event in seen.key_averages()}
    assert {"staticrt::linear", "staticrt::linear+gelu+mul+add", "staticrt::layer_norm"} <= names
    net(x)
    assert names == {event.key for event in seen.key_averages()}


def test_a_roof_is_never_below_what_was_reached():
    roof = Roofline(1e9, {"l1": 1e9, "l2": 1e9, "l3": 1e9, "memory": 1e9}, 1)
    raised = roof.raised_to([(4000, 8, 1000.0), (0, 1 << 30, 1e8)])
    assert raised.flops_per_s == 4e9
    assert raised.bytes_per_s["l1"] == 1e9
    assert raised.bytes_per_s["memory"] == pytest.approx((1 << 30) / 1e-1)
    assert raised.floor_ns(8000, 0) == pytest.approx(2000)
