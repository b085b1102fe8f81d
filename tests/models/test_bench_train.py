"""`staticrt bench --train`: every way gives the same loss, and the tables name targets."""

import json

from staticrt.cli import main
from staticrt.models.bench import train


def test_one_model_is_measured_and_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "MODELS", {"small MLP": (lambda: train._mlp(8, 1), (4, 8), 1.3)})
    target = tmp_path / "train.json"
    assert main(["bench", "--train", "--seconds", "0.05", "--json", str(target)]) == 0
    text = capsys.readouterr().out
    assert "whole step" in text
    assert "1.30 met" in text or "1.30 missed" in text
    (row,) = json.loads(target.read_text())["training"]
    assert set(row["ms"]) == {"eager", "AOT eager", "staticrt", "whole step"}
    assert row["arena_bytes"] >= row["lower_bound_bytes"] > 0
    assert 0 < row["saved_bytes"]["staticrt"] <= row["saved_bytes"]["eager"] * 2
