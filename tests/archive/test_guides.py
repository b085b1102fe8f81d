"""The Python blocks of the guides on archives run, in order, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "docs" / "save_load.md", ROOT / "docs" / "cpp.md"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_blocks_run(guide, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope = {"__name__": guide.stem}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{guide.name}, block {number}", "exec"), scope)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_links_lead_somewhere(guide):
    for target in re.findall(r"\]\(([^)#:]+)\)", guide.read_text()):
        assert (guide.parent / target).exists(), target
