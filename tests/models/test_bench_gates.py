"""Targets of the benchmark: which rows meet them, and what the table says."""

import pytest

from staticrt.models.bench import gates, report
from staticrt.models.bench import job as jobs


def row(model, peer, **fields):
    measured = {"status": jobs.OK, "reason": None, "speedup": 1.0, "first_answer_s": 1.0, "facts": {}}
    measured |= {"steady_peak_bytes": 1 << 20, "eager_peak_bytes": 1 << 20}
    return {"model": model, "peer": peer, **measured, **fields}


def verdicts(rows):
    return {(gate.name.split(" ")[0], gate.model): (gate.value, gate.verdict) for gate in gates.check(rows)}


def test_gates_compare_with_each_bound():
    found = verdicts(
        [
            row("mlp", "static_runtime", speedup=2.0),
            row("mlp", "inductor", first_answer_s=5.0),
            row(
                "mlp",
                "staticrt",
                speedup=3.0,
                first_answer_s=0.4,
                facts={"nodes": 10, "managed_or_view_nodes": 8},
            ),
            row("vit_s", "static_runtime", speedup=2.0),
            row("vit_s", "staticrt", speedup=0.96, steady_peak_bytes=9 << 20),
        ]
    )
    assert found["right", "mlp"] == (jobs.OK, gates.PASSED)
    assert found["first", "mlp"] == (pytest.approx(0.08), gates.PASSED)
    assert found["first", "vit_s"] == (None, gates.UNKNOWN)
    assert found["speed", "vit_s"] == (0.96, gates.MISSED)
    assert found["steady", "vit_s"] == (8.0, gates.MISSED)
    assert found["steady", "mlp"] == (0.0, gates.PASSED)
    assert found["managed", "all"] == (0.8, gates.MISSED)
    ours = gates.check([row("mlp", "static_runtime", speedup=2.0), row("mlp", "staticrt")])
    assert [(g.value, g.verdict) for g in ours if "Static Runtime" in g.name] == [(0.5, gates.MISSED)]


def test_memory_is_judged_beyond_what_any_capture_leaves():
    mib = 1 << 20
    rows = [
        row("mlp", "staticrt", steady_peak_bytes=21 * mib),
        row("unet", "staticrt", steady_peak_bytes=40 * mib, eager_peak_bytes=20 * mib),
        row("vit_s", "staticrt", steady_peak_bytes=30 * mib, eager_peak_bytes=5 * mib),
    ]
    found = verdicts(rows)
    assert found["steady", "mlp"] == found["steady", "unet"] == (0.0, gates.PASSED)
    assert found["steady", "vit_s"] == (5.0, gates.MISSED)
    assert verdicts(rows[:1])["steady", "mlp"] == (None, gates.UNKNOWN), "one model shows no difference"


def test_a_wrong_row_meets_no_target_and_a_missing_one_is_not_measured():
    wrong = gates.check([row("mlp", "staticrt", status=jobs.WRONG, speedup=50.0)])
    assert {g.verdict for g in wrong if g.model == "mlp"} == {gates.MISSED}
    absent = gates.check([row("mlp", "eager")])
    assert {g.verdict for g in absent} == {gates.UNKNOWN}
    # A peer's wrong answer is not a speed to be held against.
    broken = gates.check([row("mlp", "static_runtime", status=jobs.WRONG), row("mlp", "staticrt")])
    assert [g.verdict for g in broken if "Static Runtime" in g.name] == [gates.UNKNOWN]


def test_the_gate_table_counts_what_is_met():
    text = report.render_gates(gates.check([row("mlp", "staticrt", speedup=0.5)]))
    assert "MISSED" in text
    assert "1 of 2 measured targets met, 4 not measured" in text
