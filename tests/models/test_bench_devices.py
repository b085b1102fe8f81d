"""`staticrt bench --devices`: zoo models with their tensors on the simulated device. Times are not judged."""

import dataclasses
import json
import subprocess
import sys

import pytest

from staticrt.models.bench import command, devices
from staticrt.models.bench.devices import DeviceRow, render
from staticrt.models.bench.gates import MISSED, PASSED

ROW = DeviceRow("sim:0", "mlp", 5, "", 10.0, 4.0, 3.0, 2.0, 5, 1, 1024, 1024, {}, ())


@pytest.mark.parametrize("model", ["mlp", "encoder_tiny"])
def test_a_model_gives_eagers_answer_within_the_planners_bound(model):
    """In a process of its own: devices are made before the first backward."""
    worker = [sys.executable, "-m", devices.__name__, model, "sim:0"]
    done = subprocess.run(worker, capture_output=True, text=True, check=True)
    row = DeviceRow(**json.loads(done.stdout.splitlines()[-1]))
    assert row.difference == ""
    assert row.nodes > 1
    assert 0 < row.arena_bytes == row.lower_bound_bytes
    assert row.waits == {}
    assert list(row.eagerly) == []
    assert row.launches > 1
    assert row.plan_graphs_launches == 1


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, PASSED),
        ({"difference": "shape (2,), expected (3,)"}, MISSED),
        ({"arena_bytes": 1025}, MISSED),
        ({"waits": {"aten::item": 1}}, MISSED),
        ({"ours_us": 6.0}, MISSED),
        ({"ours_us": 6.0, "device": "cuda:0"}, PASSED),
    ],
)
def test_what_a_row_must_hold(change, verdict):
    assert dataclasses.replace(ROW, **change).verdict == verdict


def test_the_table_names_what_failed():
    row = {**dataclasses.asdict(ROW), "node_us": ROW.node_us, "verdict": ROW.verdict}
    text = render([row, {"device": "cuda:0", "name": "mlp", "failed": "no memory", "verdict": MISSED}])
    assert "2.50" in text
    assert "failed: no memory" in text
    assert command.SUITES["devices"][0] == devices.__name__
