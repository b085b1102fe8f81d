"""`staticrt bench --train`: every way gives the same loss, and the tables name targets."""

import json
from dataclasses import replace

import pytest
import torch

from staticrt.models import zoo
from staticrt.models.bench import train, train_costs, train_first, train_memory, train_zoo
from staticrt.tools.cli.main import main


def test_one_model_is_measured_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "MODELS", {"small MLP": (lambda: train.mlp(8, 1), (4, 8), 1.3)})
    small = {"small": (lambda: torch.nn.Sequential(train.mlp(16, 1), torch.nn.Linear(16, 4)), (32, 16))}
    monkeypatch.setattr(train_memory, "MODELS", small)
    monkeypatch.setattr(
        train_first, "WAYS", {way: train_first.WAYS[way] for way in ("without gradients", "staticrt.compile")}
    )
    monkeypatch.setattr(train_costs, "_CALLS", 4)
    monkeypatch.setattr(train_costs, "_BATCHES", 2)
    monkeypatch.setattr(train_costs, "_OPERATORS", 30)
    monkeypatch.setattr(zoo, "ENTRIES", (zoo.get("mlp"),))
    target = tmp_path / "train.json"
    assert main(["bench", "--train", "--seconds", "0.05", "--json", str(target)]) == 0
    text = capsys.readouterr().out
    assert "whole step" in text
    assert "1.30 met" in text or "1.30 missed" in text
    (memory,) = json.loads(target.read_text())["memory"]
    assert memory["saved_bytes"]["staticrt 1"] <= memory["saved_bytes"]["eager"]
    assert memory["step_bytes"]["arena"] >= memory["step_bytes"]["lower_bound"] > 0
    assert memory["step_bytes"]["eager"] > 0
    peaks = list(memory["peak_bytes"].values())
    assert peaks == sorted(peaks, reverse=True)
    assert "eager's peak" in text
    costs = json.loads(target.read_text())["costs"]
    assert set(costs["two_operators_us"]) == {"eager", "AOT eager", "AOT node", "native node"}
    assert costs["compile_s"]["nodes"] >= 60
    assert costs["compile_s"]["plan"] > 0
    assert "Forward and backward of two operators" in text
    (row,) = json.loads(target.read_text())["training"]
    ways = {"eager", "AOT eager", "backend", "graph splits", "staticrt.compile", "whole step"}
    assert set(row["ms"]) == set(row["peak_bytes"]) == ways
    assert row["peak_bytes"]["staticrt.compile"] > 0
    assert "Peak of a step, MB" in text
    (first,) = json.loads(target.read_text())["first_calls"]
    assert set(first["first_ms"]) == {"without gradients", "staticrt.compile"}
    assert all(ms > 0 for ms in first["first_ms"].values())
    assert "First call of a process" in text
    assert [row["model"] for row in json.loads(target.read_text())["zoo"]] == ["mlp"]
    assert row["arena_bytes"] >= row["lower_bound_bytes"] > 0
    assert 0 < row["saved_bytes"]["staticrt"] <= row["saved_bytes"]["eager"] * 2


def test_models_of_the_zoo_are_measured_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        train_zoo, "WAYS", {way: train_zoo.WAYS[way] for way in ("eager", "staticrt.compile")}
    )
    target = tmp_path / "train.json"
    assert (
        main(["bench", "--train", "--models", "mlp,control_flow", "--seconds", "0.05", "--json", str(target)])
        == 0
    )
    text = capsys.readouterr().out
    document = json.loads(target.read_text())
    assert "training" not in document
    rows = {row["model"]: row for row in document["zoo"]}
    assert set(rows) == {"mlp", "control_flow"}
    for row in rows.values():
        assert set(row["ms"]) | set(row["failed"]) == {"eager", "staticrt.compile", "whole step"}
        assert set(row["peak_bytes"]) == set(row["ms"])
        assert all(ms > 0 for ms in row["ms"].values())
    assert not rows["mlp"]["failed"]
    peaks = rows["mlp"]["peak_bytes"]
    assert peaks["staticrt.compile"] <= 1.02 * peaks["eager"]
    assert f"({peaks['staticrt.compile'] / peaks['eager']:.2f})" in text
    assert "geometric mean" in text


def test_a_way_that_answers_otherwise_has_failed(monkeypatch):
    class Doubled(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return 2 * self.model(x)

    monkeypatch.setattr(train_zoo, "WAYS", {"eager": lambda model: model, "staticrt.compile": Doubled})
    (row,) = train_zoo.measure_zoo(zoo.select(["mlp"]), seconds=0.01)
    assert "its loss is" in row["failed"]["staticrt.compile"]
    assert "staticrt.compile" not in row["ms"]
    assert "mlp, staticrt.compile: AssertionError: its loss is" in train_zoo.render_zoo([row])


def test_a_model_that_fails_in_eager_ends_neither_the_table_nor_its_targets(monkeypatch):
    class Broken(torch.nn.Linear):
        def forward(self, x):
            raise ValueError("broken on purpose")

    ways = {way: train_zoo.WAYS[way] for way in ("eager", "staticrt.compile")}
    monkeypatch.setattr(train_zoo, "WAYS", ways)
    mlp = zoo.get("mlp")
    rows = train_zoo.measure_zoo([replace(mlp, name="broken", make=lambda: Broken(1, 1)), mlp], seconds=0.05)
    assert [row["model"] for row in rows] == ["broken", "mlp"]
    assert not rows[0]["ms"]
    text = train_zoo.render_zoo(rows)
    assert "broken, eager: ValueError: broken on purpose" in text
    assert "geometric mean" in text
    assert "geometric mean" not in train_zoo.render_zoo(rows[:1])
    gates = {(gate.model, gate.name): gate for gate in train_zoo.check_zoo(rows)}
    assert gates["broken", "ways that fail"].verdict == "MISSED"
    assert gates["broken", "speed / eager's"].verdict == "not measured"
    assert gates["mlp", "ways that fail"].verdict == "passed"
    for share, verdict in ((1.0, "passed"), (2.0, "MISSED")):
        for key in ("ms", "peak_bytes"):
            rows[1][key]["staticrt.compile"] = share * rows[1][key]["eager"]
        _, speed, peak = train_zoo.check_zoo(rows[1:])
        assert (speed.value, speed.verdict) == (pytest.approx(1 / share), verdict)
        assert (peak.value, peak.verdict) == (pytest.approx(share), verdict)


def test_the_peak_of_a_call_is_that_of_its_allocations():
    def call():
        torch.ones(1000) + torch.ones(1000)
        torch.empty(2500)

    assert train_memory.allocated_peak(call) == 3 * 4000
