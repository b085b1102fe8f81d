"""Each recipe of docs/recipes.md runs as it stands; one whose library is missing is skipped by name."""

import importlib
import re
from pathlib import Path

import pytest
import torch

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
SECTIONS = re.findall(r"^## (.+?)\n\n`pip install (.+?)`(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
RECIPES = {
    title: (install, re.findall(r"^```python\n(.*?)^```", body, re.DOTALL | re.MULTILINE))
    for title, install, body in SECTIONS
}


def missing(code):
    """The first library that a recipe imports and that cannot be imported here, with the reason."""
    for name in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError) as error:  # also a build for another torch
            return f"{name} cannot be imported ({error})"
    return None


def test_every_section_is_a_recipe():
    assert len(RECIPES) == len(re.findall(r"^## ", TEXT, re.MULTILINE))
    for title, (_install, blocks) in RECIPES.items():
        assert len(blocks) == 1, title
        assert "assert" in blocks[0], f"{title} compares with nothing"


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(title, tmp_path, monkeypatch, recwarn):
    install, (code,) = RECIPES[title]
    if (reason := missing(code)) is not None:
        pytest.skip(f"{reason}: pip install {install}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    exec(compile(code, f"recipes.md: {title}", "exec"), {"__name__": "__main__"})
