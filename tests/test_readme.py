"""The README's code runs, and its commands exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_code_runs(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    assert "1 captured graph" in capsys.readouterr().out


def test_make_targets_exist():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["bench", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"{target}:" in makefile for target in targets)


def test_commands_exist():
    from staticrt.cli import COMMANDS

    named = set(re.findall(r"`staticrt (\w+)", README))
    assert named == set(COMMANDS)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
