"""`staticrt bench --graphs`: every row is a time, and those with a target say whether it was met."""

import pytest
import torch

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


@pytest.mark.usefixtures("num_threads_stays")
def test_threads_are_as_before_whatever_happens(monkeypatch):
    from staticrt.models.bench import graph_trees

    def fails(device):
        assert torch.get_num_threads() == 1
        raise RuntimeError("planned")

    monkeypatch.setattr(graph_trees, "GraphContext", fails)
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="planned"):
        graph_trees.first_call_rows(1)
    assert torch.get_num_threads() == 2
