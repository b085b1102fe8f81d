"""`staticrt bench --graphs`: every row is a time, and those with a target say whether it was met."""

from staticrt.models.bench import graphs
from staticrt.models.bench.gates import MISSED, PASSED


def test_rows_and_verdicts():
    rows, table = graphs.main(quick=True)
    assert all(row["value_us"] > 0 or "copied" in row["name"] for row in rows)
    assert {row["verdict"] for row in rows if row["target_us"] is None} == {""}
    assert {row["verdict"] for row in rows if row["target_us"] is not None} <= {PASSED, MISSED}
    for row in rows:
        assert row["name"] in table


def test_a_replay_costs_less_than_eager():
    eager, boxed, prepared, compiled = (row.value_us for row in graphs.replay_rows(20))
    assert boxed < eager
    assert prepared < boxed
    assert compiled < eager


def test_verdicts_compare_with_the_target():
    assert graphs.Row("a", 0.2, 0.25).verdict == PASSED
    assert graphs.Row("a", 0.3, 0.25).verdict == MISSED
    assert graphs.Row("a", 0.3).verdict == ""
