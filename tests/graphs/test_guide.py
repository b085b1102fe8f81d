"""The code of docs/graphs.md runs."""

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "graphs.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))
def test_code_runs(block):
    exec(compile(block, "docs/graphs.md", "exec"), {})
