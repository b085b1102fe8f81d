"""`TORCH_LOGS="+staticrt"`: what the backend says while it compiles."""

import os
import subprocess
import sys

PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
fast = torch.compile(model, backend="staticrt")
fast(torch.randn(2, 4)).sum().backward()
with torch.no_grad():
    fast(torch.randn(2, 4))
"""


def _stderr(logs):
    environment = {**os.environ, "TORCH_LOGS": logs}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_graphs_and_regions_are_logged():
    text = _stderr("+staticrt")
    assert "compiled region 0 of" in text
    assert "forward graph of" in text
    assert "backward graph" in text
    assert "aten.mm" in text or "aten.addmm" in text  # debug lines hold the graphs
    assert "compiled a graph of" in text  # without gradients


def test_without_plus_no_graphs_are_shown():
    text = _stderr("staticrt")
    assert "compiled region 0 of" in text
    assert "placeholder[target" not in text
