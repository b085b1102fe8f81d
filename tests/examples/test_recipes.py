"""Each recipe of docs/recipes.md runs as it stands; one whose library is missing is skipped by name."""

import importlib
import importlib.metadata
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


def missing(code, install):
    """The first library that a recipe needs and that is not here or cannot be imported, with the reason."""
    for name in re.findall(r"[\w-]+", re.sub(r"\[.*?\]", "", install)):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            return f"{name} is not installed"
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
    if (reason := missing(code, install)) is not None:
        pytest.skip(f"{reason}: pip install {install}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    exec(compile(code, f"recipes.md: {title}", "exec"), {"__name__": "__main__"})
