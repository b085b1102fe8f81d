"""The code of docs/onnx.md runs."""

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "onnx.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))
def test_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/onnx.md", "exec"), {})
