"""The code of the guides runs."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("guide", ["torch_compile.md", "training.md"])
def test_code_runs(guide, capsys):
    torch._dynamo.reset()
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)
    assert blocks
    scope = {}
    for block in blocks:
        exec(compile(block, guide, "exec"), scope)
    if guide == "training.md":
        printed = capsys.readouterr().out
        assert "training, native node" in printed  # what the region needs fits the node of our own
        assert "('backward', " in printed
    for link in re.findall(r"\]\(([^)#]+)\)", (DOCS / guide).read_text()):
        assert (DOCS / link).exists(), link
